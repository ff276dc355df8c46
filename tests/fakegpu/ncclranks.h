// What the ranks of a communicator share, and how they wait for each other. Of NCCL's fake.
#pragma once
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <mutex>
#include <string>

#include "elements.h"

namespace nccl {

using elements::Reduction;
using elements::Type;

constexpr int MAX_RANKS = 64;

// ncclResult_t
enum Result {
  SUCCESS,
  CUDA_ERROR,
  SYSTEM_ERROR,
  INTERNAL_ERROR,
  INVALID_ARGUMENT,
  INVALID_USAGE,
  REMOTE_ERROR
};

// ncclRedOp_t; numbers above are a communicator's own, made by ncclRedOpCreatePreMulSum
enum { SUM, PROD, MAX, MIN, AVG, FIRST_OWN_OPERATION };

constexpr int DATATYPES = 12;  // of ncclDataType_t: elements::Type begins with them, in its order

struct Barrier {
  std::atomic<int> arrived;
  std::atomic<uint64_t> round;
};

// What a rank shows to the others: who it is, and what its current call reads and writes.
struct Rank {
  int pid, gpu, color, key;
  uint64_t in, out;
  double factor;
};

// Where a rank leaves one message at a time for another; the counters are never reset.
struct Mailbox {
  std::atomic<uint64_t> posted, taken;
  uint64_t address, bytes;
};

// Shared memory begins as zeroes, which is a valid start for all of it.
struct Shared {
  std::atomic<int> joined, error;
  Barrier of_streams, of_hosts;  // two, since a host may split while streams still work
  Rank ranks[MAX_RANKS];
  Mailbox mail[MAX_RANKS][MAX_RANKS];  // [sender][receiver]
};

// How elements are combined. `factor_at`, if any, is read when the call runs.
struct Operation {
  Reduction reduction = Reduction::sum;
  bool is_average = false;
  double factor = 1;
  const void* factor_at = nullptr;
  Type factor_type = Type::float64;
};

struct Communicator {
  std::string name;  // the same on all ranks
  int rank, n, gpu, device;
  Shared* shared;
  std::atomic<bool> is_aborted{false}, is_connected{false};
  std::atomic<int> error{SUCCESS};
  std::mutex executing;  // streams of one process take turns
  int splits = 0, next_operation = FIRST_OWN_OPERATION;
  std::map<int, Operation> operations;

  ~Communicator() { munmap(shared, sizeof(Shared)); }
  Rank& self() { return shared->ranks[rank]; }
};

struct Aborted {};

// Wait for others; throws Aborted. Whoever waits long sleeps, so that 8 ranks can share 2 cores.
template <typename Condition>
void wait_until(const Communicator& comm, Condition holds) {
  for (int looks = 0; !holds(); looks++) {
    if (comm.is_aborted) throw Aborted();
    if (looks < 100) sched_yield();
    else usleep(50);
  }
}

inline void wait_for_abort(const Communicator& comm) {
  wait_until(comm, [] { return false; });
}

inline void pass_barrier(const Communicator& comm, Barrier& barrier) {
  uint64_t round = barrier.round;
  if (barrier.arrived.fetch_add(1) + 1 == comm.n) {
    barrier.arrived = 0;
    barrier.round = round + 1;
  } else {
    wait_until(comm, [&] { return barrier.round != round; });
  }
}

}  // namespace nccl
