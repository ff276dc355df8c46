"""What looks like a secret: by the name that it has, by its own look, or by the command it is given
to."""

from __future__ import annotations

import re

# in any part of a name; the short ones only where a word of it ends: SIGNAL, BYPASS, I_MPI_PIN and
# CREDITS are no secrets
NAMES = (
    r"TOKEN|KEY|SECRET|PASSW|PASSPHRASE|PASSCODE|CRED(?!IT)|AUTH|PRIVATE|COOKIE|SESSION|BEARER"
    r"|SALT|LOGIN|SIGNATURE|TICKET|(?<!BY)PASS(?![A-Z])|(?:DSN|OTP|PW|PWD|PSK|JWT)(?![A-Z])"
    r"|(?<![A-Z])(?:USER|DB|APP|API|CARD|SMS|MY)?(?<!I_MPI_)PIN(?![A-Z])"
    r"|(?<![A-Z])(?:USER|GIT|GH|GITHUB|GITLAB|GL|MY)?PAT(?![A-Z])"
    r"|(?<![A-Z])(?:SAS|URL|MY)?SIG(?![A-Z])"
)

# how tokens and keys of well-known services begin, and what follows
SHAPES = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"A(?:KIA|SIA|GPA|IDA|ROA|NPA|NVA)[A-Z0-9]{12,}"  # AWS
    r"|AIza[\w-]{20,}|ya29\.[\w-]+|GOCSPX-[\w-]+"  # Google
    r"|(?:hf|api_org)_[A-Za-z0-9]{8,}"  # Hugging Face
    r"|gh[opsur]_[A-Za-z0-9]{8,}|github_pat_\w{8,}"
    r"|gl(?:pat|dt|rt|cbt|ptt|ft|soat|imt|agent|oas|ffct)-[\w.-]{8,}"  # GitLab
    r"|xox[a-z]-[\w-]{6,}|xapp-[\w-]{6,}"  # Slack
    r"|(?:sk|rk|pk)[-_][\w-]{12,}|whsec_\w{8,}"  # OpenAI, Anthropic, Stripe
    r"|(?:gsk|r8|pplx|xai|nvapi|tvly|wandb_v1|lin_api|ntn|figd)[-_][A-Za-z0-9_-]{16,}"
    r"|(?:npm|dckr_pat|pscale_tkn|do[opr]_v1|shp(?:at|ca|pa|ss)|sntrys|glsa|glc)_[\w.-]{8,}"
    r"|pypi-[\w-]{12,}|rubygems_\w{12,}|tskey-[\w-]{8,}|dapi[0-9a-f]{16,}|hv[bsr]\.[\w-]{8,}"
    r"|SG\.[\w-]{8,}(?:\.[\w-]+)?|key-[0-9a-f]{32}|\d{8,10}:AA[\w-]{30,}"  # mail, Telegram
    r"|eyJ[\w-]{6,}\.[\w-]{4,}(?:\.[\w-]*)?"  # JSON Web Tokens
    r"|AGE-SECRET-KEY-1[A-Z0-9]+"
    r"|[A-Za-z0-9+/]{86}==|[A-Za-z0-9+/]{43}="  # 64 and 32 bytes in base64
    r"|-----BEGIN[A-Z ]*PRIVATE KEY-----[^-]*(?:-----END[A-Z ]*-----)?"
    r"|(?<![/.-])(?=[A-Za-z0-9]*[a-z])(?=[A-Za-z0-9]*[A-Z])(?=[A-Za-z0-9]*\d)[A-Za-z0-9]{32,}"
    r"(?![\w/.-])"  # letters and digits at random
    r")"
)

_QUOTED = r""""(?:\\.|[^"\\])*(?:"|$)|'[^']*(?:'|$)"""
_WORD = rf"(?:{_QUOTED}|\S+)"
_VALUE = r"(?:[^&,;]|[&,;](?!\s|$|[\w.-]+=))+"  # up to the next setting, or the end of a clause

_IN_URL = re.compile(r"(?<=://)\S*@|[^\s/,;=:]+:(?!//)\S*@")
_IN_SETTING = re.compile(
    rf"""((?<![\w-])[\w-]{{0,64}}(?:{NAMES})\w*["']?\s*[=:]\s*)(?:{_QUOTED}|{_VALUE})""",
    re.IGNORECASE,
)
_IN_HOOK = re.compile(r"(hooks\.slack\.com/\w+/|discord(?:app)?\.com/api/webhooks/)\S+")

# --password X, sshpass -p X, curl -u user:X, mysql -pX, bearer X, password is X
_IN_COMMAND = re.compile(
    rf"""((?<![\w-])--?[\w-]{{0,64}}(?:{NAMES})[\w-]*\s+
    |\bsshpass\s+-p\s*
    |\b(?:curl|wget|http)\s(?:.{{0,200}}?\s)?(?:-u|--user|--proxy-user)[\s=]\s*["']?[^\s:"']+:
    |\b(?:mysql|mariadb|mongo)\w*\s(?:.*?\s)?-p\s*
    |\b\w{{0,64}}(?:{NAMES})\w*\s+is\s+
    |\b(?:TOKEN|BEARER|BASIC|AUTH)\s+(?!is\s))
    {_WORD}""",
    re.IGNORECASE | re.VERBOSE,
)


def is_name_of_one(name: str) -> bool:
    """Whether a variable of this name may hold a secret."""
    return bool(re.search(NAMES, name.upper()))


def mask_secrets(text: str) -> str:
    """``text`` with *** for what looks like a secret."""
    for pattern, instead in (
        (SHAPES, "***"),
        (_IN_URL, "***@"),
        (_IN_HOOK, r"\1***"),
        (_IN_SETTING, r"\1***"),
        (_IN_COMMAND, r"\1***"),
    ):
        text = pattern.sub(instead, text)
    return text
