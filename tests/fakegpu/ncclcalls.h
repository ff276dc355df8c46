// Collectives and messages between ranks that read each other's memory. Of NCCL's fake.
//
// Each collective is: all show their buffers; a barrier; all read what they need from the others; a
// barrier, after which buffers may be written again. Sums are added up in the order of ranks
// everywhere. No call keeps a state of its own, so that a graph can replay it.
#pragma once
#include <sys/uio.h>

#include <cerrno>
#include <deque>
#include <vector>

#include "nccllog.h"

namespace nccl {

constexpr size_t PIECE_BYTES = 64 << 10;  // what is read at once to be added up: fits in a cache

enum class Kind {
  all_reduce,
  reduce,
  reduce_scatter,
  all_gather,
  broadcast,
  all_to_all,
  gather,
  scatter,
  send,
  receive
};

// A collective or a message, as it was asked for. `peer` is the root of a collective.
struct Call {
  Kind kind;
  const char* in;
  char* out;
  size_t count;  // as NCCL counts it: of a part, where ranks have parts
  Type type;
  int peer = 0;
  Operation operation = {};

  size_t bytes() const { return count * elements::size_of(type); }
  bool is_message() const { return kind == Kind::send || kind == Kind::receive; }
};

// Read another rank's memory. Where it is gone, the rank has died or given up: its data never come.
inline void read_memory(Communicator& comm, int rank, uint64_t from, char* to, size_t bytes) {
  int pid = comm.shared->ranks[rank].pid;
  if (pid == getpid()) {
    memmove(to, (const void*)from, bytes);
    return;
  }
  for (size_t done = 0; done < bytes;) {
    iovec local{to + done, bytes - done}, remote{(char*)from + done, bytes - done};
    ssize_t got = process_vm_readv(pid, &local, 1, &remote, 1, 0);
    if (got > 0) {
      done += got;
      continue;
    }
    if (got < 0 && errno != ESRCH) {
      comm.error =
          fail(comm.device, SYSTEM_ERROR, "cannot read %zu bytes of rank %d (process %d): %s",
               bytes - done, rank, pid, strerror(errno));
      fprintf(stderr, "fake NCCL: %s\n", last_error);
    }
    wait_for_abort(comm);
  }
}

inline bool is_integer(Type type) { return type <= Type::uint64; }

inline double read_number(const void* at, Type type) {
  switch (type) {
    case Type::int8: return *(const int8_t*)at;
    case Type::uint8: return *(const uint8_t*)at;
    case Type::int32: return *(const int32_t*)at;
    case Type::uint32: return *(const uint32_t*)at;
    case Type::int64: return *(const int64_t*)at;
    case Type::uint64: return *(const uint64_t*)at;
    case Type::half: return elements::Half::load(*(const uint16_t*)at);
    case Type::float32: return *(const float*)at;
    case Type::float64: return *(const double*)at;
    case Type::bfloat16: return elements::Bfloat16::load(*(const uint16_t*)at);
    case Type::f8e4m3: return elements::F8e4m3::load(*(const uint8_t*)at);
    case Type::f8e5m2: return elements::F8e5m2::load(*(const uint8_t*)at);
    default: return 1;
  }
}

// By what this rank's elements are multiplied before they are added up. Averages of floats are
// divided then, so that they do not overflow; those of integers afterwards, so that they are exact.
inline double factor_of(const Communicator& comm, const Call& call) {
  const Operation& operation = call.operation;
  if (operation.is_average) return is_integer(call.type) ? 1 : 1.0 / comm.n;
  return operation.factor_at ? read_number(operation.factor_at, operation.factor_type)
                             : operation.factor;
}

// Reduce all ranks' elements from `start` on into `out`, a piece at a time: `out` may be where this
// rank's own elements are.
inline void reduce_elements(Communicator& comm, const Call& call, size_t start, size_t count,
                            char* out) {
  std::vector<char> total(PIECE_BYTES), addend(PIECE_BYTES);
  size_t size = elements::size_of(call.type), step = PIECE_BYTES / size;
  for (size_t at = 0; at < count; at += step) {
    size_t length = std::min(step, count - at);
    for (int rank = 0; rank < comm.n; rank++) {
      const Rank& other = comm.shared->ranks[rank];
      char* piece = rank == 0 ? total.data() : addend.data();
      read_memory(comm, rank, other.in + (start + at) * size, piece, length * size);
      if (other.factor != 1) elements::scale(piece, length, call.type, other.factor, 1);
      if (rank > 0)
        elements::combine(total.data(), piece, length, call.type, call.operation.reduction);
    }
    if (call.operation.is_average && is_integer(call.type))
      elements::scale(total.data(), length, call.type, 1, comm.n);
    memcpy(out + at * size, total.data(), length * size);
  }
}

// Each rank reduces a part, where its result is to be, and then reads the other parts there. Only
// the owner of a part reads it from the inputs, so that these may be the same buffers.
inline void all_reduce(Communicator& comm, const Call& call) {
  size_t size = elements::size_of(call.type);
  auto start_of = [&](int rank) { return call.count * rank / comm.n; };
  size_t own = start_of(comm.rank);
  reduce_elements(comm, call, own, start_of(comm.rank + 1) - own, call.out + own * size);
  pass_barrier(comm, comm.shared->of_streams);
  for (int step = 1; step < comm.n; step++) {
    int rank = (comm.rank + step) % comm.n;
    size_t start = start_of(rank) * size, end = start_of(rank + 1) * size;
    read_memory(comm, rank, comm.shared->ranks[rank].out + start, call.out + start, end - start);
  }
}

// Read from rank i's input, from `offset` on, what becomes part i of this rank's output.
inline void read_parts(Communicator& comm, const Call& call, size_t offset, char* out) {
  for (int step = 0; step < comm.n; step++) {
    int rank = (comm.rank + step) % comm.n;
    read_memory(comm, rank, comm.shared->ranks[rank].in + offset, out + rank * call.bytes(),
                call.bytes());
  }
}

// In place, a rank's parts may be overwritten only when all others have read them.
inline void all_to_all(Communicator& comm, const Call& call) {
  bool in_place = call.in == call.out;
  std::vector<char> copy(in_place ? comm.n * call.bytes() : 0);
  read_parts(comm, call, comm.rank * call.bytes(), in_place ? copy.data() : call.out);
  pass_barrier(comm, comm.shared->of_streams);
  if (in_place) memcpy(call.out, copy.data(), copy.size());
}

inline void run_collective(Communicator& comm, const Call& call) {
  Rank& self = comm.self();
  self.in = (uint64_t)call.in;
  self.out = (uint64_t)call.out;
  self.factor = factor_of(comm, call);
  pass_barrier(comm, comm.shared->of_streams);
  uint64_t at_root = comm.shared->ranks[call.peer].in;
  bool is_root = comm.rank == call.peer;
  switch (call.kind) {
    case Kind::all_reduce: all_reduce(comm, call); break;
    case Kind::reduce:
      if (is_root) reduce_elements(comm, call, 0, call.count, call.out);
      break;
    case Kind::reduce_scatter:
      reduce_elements(comm, call, comm.rank * call.count, call.count, call.out);
      break;
    case Kind::all_gather: read_parts(comm, call, 0, call.out); break;
    case Kind::broadcast: read_memory(comm, call.peer, at_root, call.out, call.bytes()); break;
    case Kind::all_to_all: all_to_all(comm, call); break;
    case Kind::gather:
      if (is_root) read_parts(comm, call, 0, call.out);
      break;
    case Kind::scatter:
      read_memory(comm, call.peer, at_root + comm.rank * call.bytes(), call.out, call.bytes());
      break;
    default: break;
  }
  pass_barrier(comm, comm.shared->of_streams);
}

struct Outgoing {
  std::deque<Call> calls;
  bool is_posted = false;  // the first of them
};

// The next step of sending to a peer, if there is one to take.
inline bool advance_sending(Communicator& comm, int peer, Outgoing& outgoing) {
  Mailbox& box = comm.shared->mail[comm.rank][peer];
  if (outgoing.calls.empty() || box.taken != box.posted) return false;
  if (outgoing.is_posted) {
    outgoing.calls.pop_front();
  } else {
    box.address = (uint64_t)outgoing.calls.front().in;
    box.bytes = outgoing.calls.front().bytes();
    box.posted++;
  }
  outgoing.is_posted = !outgoing.is_posted;
  return true;
}

inline bool advance_receiving(Communicator& comm, int peer, std::deque<Call>& calls) {
  Mailbox& box = comm.shared->mail[peer][comm.rank];
  if (calls.empty() || box.posted == box.taken) return false;
  read_memory(comm, peer, box.address, calls.front().out,
              std::min<size_t>(box.bytes, calls.front().bytes()));
  calls.pop_front();
  box.taken++;
  return true;
}

// Send and receive all messages of a group, those of a pair of ranks in order, others in any order.
inline void exchange_messages(Communicator& comm, const std::vector<Call>& calls) {
  std::map<int, Outgoing> sends;
  std::map<int, std::deque<Call>> receives;
  size_t left = 0;
  for (const Call& call : calls) {
    if (!call.is_message()) continue;
    (call.kind == Kind::send ? sends[call.peer].calls : receives[call.peer]).push_back(call);
    left += call.kind == Kind::send ? 2 : 1;  // steps
  }
  while (left > 0)
    wait_until(comm, [&] {
      size_t before = left;
      for (auto& [peer, outgoing] : sends) left -= advance_sending(comm, peer, outgoing);
      for (auto& [peer, incoming] : receives) left -= advance_receiving(comm, peer, incoming);
      return left < before || left == 0;
    });
}

}  // namespace nccl
