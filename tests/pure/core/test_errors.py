"""What is told of an error: a line that says what happened."""

from __future__ import annotations

import pytest

from collbench.core.errors import first_line, says_peer_is_gone

NCCL = """NCCL error in: NCCLUtils.cpp:93, unhandled cuda error (run with NCCL_DEBUG=INFO)
ncclUnhandledCudaError: Call to CUDA function failed.
Last error:
{cause}"""


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ("one\ntwo", "one"),
        ("\n-----\n  said below a line\n", "said below a line"),
        ("", "RuntimeError"),
        (
            NCCL.format(cause="Failed to bind NVLS: set NCCL_NVLS_ENABLE=0\n"),
            "NCCL error in: NCCLUtils.cpp:93, unhandled cuda error (run with NCCL_DEBUG=INFO):"
            " Failed to bind NVLS: set NCCL_NVLS_ENABLE=0",
        ),
        (
            NCCL.format(cause=""),
            "NCCL error in: NCCLUtils.cpp:93, unhandled cuda error (run with NCCL_DEBUG=INFO)",
        ),
    ],
)
def test_the_line_that_says_what_happened_is_found(message: str, line: str) -> None:
    assert first_line(RuntimeError(message)) == line


REMOTE = """NCCL error in: /pytorch/torch/NCCLUtils.cpp:77, {code}, NCCL version 2
{name}: what it may be.
Last error:
{cause}"""


@pytest.mark.parametrize(
    ("code", "cause", "gone"),
    [
        (
            "remote process exited or there was a network error",
            "socketProgress: Connection closed by remote peer node1<41670>",
            True,
        ),
        ("remote process exited or there was a network error", "", True),
        (
            "unhandled system error (run with NCCL_DEBUG=INFO for details)",
            "Call to recv from 10.0.0.1<41670> failed : Connection reset by peer",
            True,
        ),
        ("unhandled cuda error (run with NCCL_DEBUG=INFO for details)", "Cuda failure 2", False),
    ],
)
def test_nccls_word_that_another_process_is_gone_is_known(
    code: str, cause: str, gone: bool
) -> None:
    error = RuntimeError(REMOTE.format(code=code, name="ncclError", cause=cause))
    assert says_peer_is_gone(first_line(error)) is gone
