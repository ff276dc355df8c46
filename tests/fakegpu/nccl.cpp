// libnccl.so.2 for ranks that are processes of one host: each communicator has a piece of shared
// memory in which its ranks meet; ncclcalls.h has what they then do. A group of calls becomes one
// piece of work on its stream. No rank notices that another has died, as with NCCL over NVLink: it
// waits until its communicator is aborted.
//
// FAKE_NCCL=2.18.5 is the version that this claims to be. FAKE_NCCL_FAULT=RANK:CALL:WHAT[,...]
// plants faults on a rank of the largest communicator of its process, at its CALL-th call counted
// from 1 (a group is one call; each replay of a graph counts again), or, as CALL@BYTES, counted over
// calls of at least so many bytes a rank:
//   kill    the process is killed          hang    the call ends only when it is aborted
//   slow    calls take 20 ms longer        wrong   a bit of the rank's own result is flipped
//   remote  calls end no more, and ncclCommGetAsyncError returns ncclRemoteError on all ranks
//   lost    the rank's GPU is gone: nothing that is asked of it from then on succeeds
//   system  ncclSystemError is returned by the call itself, which counts calls as they are issued
// slow and wrong last from that call on.
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>

#include <chrono>
#include <memory>
#include <set>

#include "ncclcalls.h"

using namespace nccl;

// Of libcudart.
extern "C" int cudaGetDevice(int* device);
extern "C" int cudaMalloc(void** pointer, size_t bytes);
extern "C" int cudaFree(void* pointer);

namespace {

// ---- Faults ----

std::atomic<int> most_ranks{0};  // of this process's communicators

struct PlantedFault {
  int rank;
  long call;     // from 1
  size_t bytes;  // calls of fewer do not count
  std::string what;
  long count = 0;

  bool is_of_issuing() const { return what == "system"; }
  bool lasts() const { return what == "slow" || what == "wrong"; }
};

std::vector<PlantedFault> planted_faults() {
  std::vector<PlantedFault> faults;
  for (const std::string& text : fake::split(fake::setting("FAKE_NCCL_FAULT"), ',')) {
    auto parts = fake::split(text, ':');
    if (parts.size() != 3) continue;
    auto call = fake::split(parts[1], '@');
    size_t bytes = call.size() > 1 ? strtoul(call[1].c_str(), nullptr, 10) : 0;
    faults.push_back({atoi(parts[0].c_str()), atol(call[0].c_str()), bytes, parts[2]});
  }
  return faults;
}

// The faults that strike these calls as they are issued, or as they are executed.
std::set<std::string> find_due_faults(const Communicator& comm, const std::vector<Call>& calls,
                                      bool issuing) {
  static auto planted = planted_faults();
  static std::mutex counting;
  std::set<std::string> due;
  if (comm.n == 1 || comm.n < most_ranks) return due;
  size_t bytes = 0;
  for (const Call& call : calls) bytes = std::max(bytes, call.bytes());
  std::lock_guard<std::mutex> lock(counting);
  for (PlantedFault& fault : planted) {
    bool counts = fault.rank == comm.rank && fault.is_of_issuing() == issuing;
    if (!counts || bytes < fault.bytes) continue;
    long number = ++fault.count;
    if (number == fault.call || (number > fault.call && fault.lasts())) due.insert(fault.what);
  }
  return due;
}

void suffer_faults(Communicator& comm, const std::set<std::string>& due) {
  if (due.count("kill")) raise(SIGKILL);
  if (due.count("slow")) usleep(20'000);
  if (due.count("lost"))
    if (FILE* marker = fopen(fake::lost_marker(comm.gpu).c_str(), "w"))
      fclose(marker);
  if (due.count("remote")) {
    fail(comm.device, REMOTE_ERROR, "a fault was planted: the connection to another rank broke");
    comm.shared->error = REMOTE_ERROR;
    wait_for_abort(comm);
  }
  if (due.count("hang") || due.count("lost")) wait_for_abort(comm);
}

// ---- Work on streams ----

size_t result_bytes(const Communicator& comm, const Call& call) {
  bool is_root = comm.rank == call.peer;
  switch (call.kind) {
    case Kind::send: return 0;
    case Kind::reduce: return is_root ? call.bytes() : 0;
    case Kind::gather: return is_root ? call.bytes() * comm.n : 0;
    case Kind::all_gather:
    case Kind::all_to_all: return call.bytes() * comm.n;
    default: return call.bytes();
  }
}

// Flip the highest bit but the sign of the element in the middle: no tolerance allows for it.
void flip_bit(const Communicator& comm, const Call& call) {
  size_t size = elements::size_of(call.type), count = result_bytes(comm, call) / size;
  if (count > 0) call.out[count / 2 * size + size - 1] ^= 0x40;
}

void execute(Communicator& comm, const std::vector<Call>& calls) {
  std::lock_guard<std::mutex> turn(comm.executing);
  try {
    if (comm.is_aborted) return;
    auto due = find_due_faults(comm, calls, false);
    suffer_faults(comm, due);
    exchange_messages(comm, calls);
    for (const Call& call : calls)
      if (!call.is_message()) run_collective(comm, call);
    if (due.count("wrong"))
      for (const Call& call : calls) flip_bit(comm, call);
  } catch (Aborted&) {
  }
}

const char* name_of(Kind kind) {
  static const char* const names[] = {"AllReduce", "Reduce",  "ReduceScatter", "AllGather", "Broadcast",
                                      "AlltoAll",  "Gather", "Scatter",       "Send",      "Recv"};
  return names[(int)kind];
}

// FAKE_NCCL_TRACE=1: which of NCCL's functions were called.
void trace(const std::vector<Call>& calls) {
  static const bool wanted = fake::number("FAKE_NCCL_TRACE", 0);
  if (!wanted) return;
  std::string names;
  for (const Call& call : calls) names += std::string(" ") + name_of(call.kind);
  fprintf(stderr, "[fake NCCL]%s\n", names.c_str());
}

// One copy is of the communicator's handle, and one of each graph that has a call of it.
using Holders = std::shared_ptr<int>;

struct Pending {
  std::shared_ptr<Communicator> comm;
  Holders holders;
  void* stream;
  Call call;
};

thread_local int group_depth = 0;
thread_local std::vector<Pending> pending;

// Put a group's calls on their streams. Communicators go in the order of their names: ranks that
// named them in different orders would wait for each other.
int issue_pending() {
  std::map<std::pair<std::string, void*>, std::vector<Pending>> batches;
  for (Pending& item : pending) batches[{item.comm->name, item.stream}].push_back(item);
  pending.clear();
  for (auto& [key, batch] : batches) {
    auto comm = batch[0].comm;
    std::vector<Call> calls;
    for (const Pending& item : batch) calls.push_back(item.call);
    if (find_due_faults(*comm, calls, true).count("system"))
      return comm->error = fail(comm->device, SYSTEM_ERROR,
                                "a fault was planted: a call to the system failed");
    log_connection(*comm);
    trace(calls);
    Holders held = fake_is_capturing(key.second) ? batch[0].holders : nullptr;
    fake::Work work = [comm, calls, held] { execute(*comm, calls); };
    if (fake_enqueue(key.second, &work))
      return comm->error = fail(comm->device, CUDA_ERROR, "Cuda failure: GPU %d is lost", comm->gpu);
  }
  return SUCCESS;
}

}  // namespace

struct ncclComm {
  std::shared_ptr<Communicator> state;  // work that is still on a stream keeps it, too
  Holders holders = std::make_shared<int>();
};

struct ncclUniqueId {
  char name[128];
};

using ncclComm_t = ncclComm*;

namespace {

int add(ncclComm_t handle, void* stream, const Call& call) {
  if (!handle) return INVALID_ARGUMENT;
  Communicator& comm = *handle->state;
  if (call.peer < 0 || call.peer >= comm.n)
    return fail(comm.device, INVALID_ARGUMENT, "rank %d is none of the %d ranks", call.peer,
                comm.n);
  if (call.count == 0 && !call.is_message()) return SUCCESS;
  pending.push_back({handle->state, handle->holders, stream, call});
  return group_depth ? SUCCESS : issue_pending();
}

bool find_operation(const Communicator& comm, int number, Operation& operation) {
  const Reduction reductions[] = {Reduction::sum, Reduction::prod, Reduction::max, Reduction::min,
                                  Reduction::sum};
  auto own = comm.operations.find(number);
  if (own != comm.operations.end()) operation = own->second;
  else if (number >= SUM && number <= AVG) operation.reduction = reductions[number];
  else return false;
  operation.is_average = number == AVG;
  return true;
}

// Of a single rank in place, NCCL launches nothing: a graph of it is empty.
bool is_empty(const Communicator& comm, const Call& call) {
  return comm.n == 1 && call.in == call.out && call.operation.factor == 1 &&
         !call.operation.factor_at;
}

int add_collective(const char* name, Kind kind, const void* in, void* out, size_t count, int type,
                   int operation, int root, ncclComm_t handle, void* stream) {
  if (!handle || type < 0 || type >= DATATYPES) return INVALID_ARGUMENT;
  Communicator& comm = *handle->state;
  Call call{kind, (const char*)in, (char*)out, count, (Type)type, root};
  if (!find_operation(comm, operation, call.operation))
    return fail(comm.device, INVALID_ARGUMENT, "reduction %d is unknown", operation);
  if (is_empty(comm, call)) return SUCCESS;
  bool has_parts = kind == Kind::all_gather || kind == Kind::reduce_scatter;
  if (name && !has_parts && fake::setting("NCCL_ALGO") == "PAT")
    return fail(comm.device, INVALID_USAGE,
                "no algorithm/protocol available for function %s. NCCL_ALGO was set to PAT.", name);
  if (name) log_choice(comm, name, call.bytes() * (has_parts ? comm.n : 1));
  return add(handle, stream, call);
}

int add_message(Kind kind, const void* in, void* out, size_t count, int type, int peer,
                ncclComm_t handle, void* stream) {
  if (type < 0 || type >= DATATYPES) return INVALID_ARGUMENT;
  return add(handle, stream, {kind, (const char*)in, (char*)out, count, (Type)type, peer});
}

Shared* map_shared(const std::string& name) {
  int file = shm_open(name.c_str(), O_RDWR | O_CREAT, 0600);
  if (file < 0 || ftruncate(file, sizeof(Shared))) return nullptr;
  void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  return memory == MAP_FAILED ? nullptr : (Shared*)memory;
}

// Ranks on one GPU are refused, but by the versions that can be asked to allow it. All ranks return
// then, as where a bootstrap breaks.
int refuse_shared_gpus(const Communicator& comm) {
  if (version_code() >= 23000 && fake::number("NCCL_MULTI_RANK_GPU_ENABLE", 0)) return SUCCESS;
  Result result = SUCCESS;
  for (int a = 0; a < comm.n; a++)
    for (int b = a + 1; b < comm.n; b++) {
      int gpu = comm.shared->ranks[a].gpu;
      if (gpu != comm.shared->ranks[b].gpu) continue;
      if (comm.rank == a || comm.rank == b)
        return fail(comm.device, INVALID_USAGE,
                    "Duplicate GPU detected : rank %d and rank %d both on CUDA device %x",
                    comm.rank, comm.rank == a ? b : a, fake::bus_number(gpu) << 12);
      result = REMOTE_ERROR;
    }
  return result;
}

// Meet the other ranks of a communicator under its name.
int join(const std::string& name, int rank, int n, ncclComm_t* into) {
  if (n < 1 || n > MAX_RANKS || rank < 0 || rank >= n)
    return fail(0, INVALID_ARGUMENT, "rank %d of %d: the fake has room for %d ranks", rank, n,
                MAX_RANKS);
  int device = 0, gpu = fake_current_gpu();
  if (cudaGetDevice(&device) || fake::is_lost(gpu))
    return fail(device, CUDA_ERROR, "Cuda failure: GPU %d is lost", gpu);
  if (!dlopen("libnvidia-ml.so.1", RTLD_LAZY))
    return fail(device, SYSTEM_ERROR, "Failed to open libnvidia-ml.so.1");
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
  Shared* shared = map_shared(name);
  if (!shared)
    return fail(device, SYSTEM_ERROR, "cannot share memory %s: %s", name.c_str(), strerror(errno));
  auto comm = std::make_shared<Communicator>();
  comm->name = name, comm->rank = rank, comm->n = n, comm->gpu = gpu, comm->device = device,
  comm->shared = shared;
  comm->self().pid = getpid(), comm->self().gpu = gpu;
  shared->joined++;
  wait_until(*comm, [&] { return shared->joined == n; });
  if (rank == 0) shm_unlink(name.c_str());  // all have it
  log_version(*comm);
  if (int refusal = refuse_shared_gpus(*comm)) return refusal;
  most_ranks = std::max<int>(most_ranks, n);
  *into = new ncclComm{comm};
  return SUCCESS;
}

// The ranks of one color, in the order of their keys.
std::vector<int> ranks_of_color(const Communicator& comm, int color) {
  std::vector<std::pair<int, int>> members;
  for (int rank = 0; rank < comm.n; rank++)
    if (comm.shared->ranks[rank].color == color)
      members.push_back({comm.shared->ranks[rank].key, rank});
  std::sort(members.begin(), members.end());
  std::vector<int> ranks;
  for (auto& member : members) ranks.push_back(member.second);
  return ranks;
}

int split(Communicator& comm, int color, int key, ncclComm_t* into) try {
  constexpr int NO_COLOR = -1;
  comm.self().color = color;
  comm.self().key = key;
  pass_barrier(comm, comm.shared->of_hosts);
  auto members = ranks_of_color(comm, color);
  pass_barrier(comm, comm.shared->of_hosts);
  std::string name = comm.name + "." + std::to_string(comm.splits++) + "." + std::to_string(color);
  *into = nullptr;
  if (color == NO_COLOR) return SUCCESS;
  int rank = std::find(members.begin(), members.end(), comm.rank) - members.begin();
  return join(name, rank, (int)members.size(), into);
} catch (Aborted&) {
  return INTERNAL_ERROR;
}

}  // namespace

// ---- NCCL's interface: ncclResult_t, ncclDataType_t and ncclRedOp_t are ints here ----

extern "C" {

int ncclGetVersion(int* version) { return *version = version_code(), SUCCESS; }

#ifndef WITHOUT_RESET_DEBUG_INIT
// Has the environment read again.
void ncclResetDebugInit() {
  std::lock_guard<std::mutex> guard(log_lock);
  if (!log_file) return;
  if (log_file != stdout) fclose(log_file);
  log_file = nullptr;
}
#endif

const char* ncclGetErrorString(int result) {
  static const char* texts[] = {"no error",
                                "unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
                                "unhandled system error (run with NCCL_DEBUG=INFO for details)",
                                "internal error - please report this issue to the NCCL developers",
                                "invalid argument (run with NCCL_DEBUG=WARN for details)",
                                "invalid usage (run with NCCL_DEBUG=WARN for details)",
                                "remote process exited or there was a network error",
                                "NCCL operation in progress"};
  return result >= 0 && result < 8 ? texts[result] : "unknown result code";
}

const char* ncclGetLastError(ncclComm_t) { return last_error; }

int ncclGetUniqueId(ncclUniqueId* id) {
  static std::atomic<int> ids{0};
  long long now = std::chrono::system_clock::now().time_since_epoch().count();
  memset(id, 0, sizeof *id);
  snprintf(id->name, sizeof id->name, "/fakenccl-%d-%d-%llx", getpid(), ids++, now);
  return SUCCESS;
}

int ncclCommInitRank(ncclComm_t* comm, int n, ncclUniqueId id, int rank) {
  return join(id.name, rank, n, comm);
}

int ncclCommInitRankConfig(ncclComm_t* comm, int n, ncclUniqueId id, int rank, void*) {
  return join(id.name, rank, n, comm);
}

// All ranks have all ids, one of which is enough here.
int ncclCommInitRankScalable(ncclComm_t* comm, int n, int rank, int, ncclUniqueId* ids, void*) {
  return join(ids[0].name, rank, n, comm);
}

int ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* into, void*) {
  return comm ? split(*comm->state, color, key, into) : INVALID_ARGUMENT;
}

int ncclCommFinalize(ncclComm_t) { return SUCCESS; }

// As NCCL does, wait until no graph holds a call: for ever, where one is kept.
int ncclCommDestroy(ncclComm_t comm) {
  if (comm && comm->holders.use_count() > 1)
    fprintf(stderr, "[fake NCCL] a graph holds a call of a communicator that is destroyed\n");
  for (fake::Patience patience; comm && comm->holders.use_count() > 1;) patience.pause();
  return delete comm, SUCCESS;
}

// The handle is kept: another thread may be about to use it.
int ncclCommAbort(ncclComm_t comm) {
  if (!comm) return INVALID_ARGUMENT;
  comm->state->is_aborted = true;
  return SUCCESS;
}

int ncclCommGetAsyncError(ncclComm_t comm, int* error) {
  *error = comm->state->error ? comm->state->error : comm->state->shared->error;
  return SUCCESS;
}

int ncclCommCount(ncclComm_t comm, int* count) { return *count = comm->state->n, SUCCESS; }
int ncclCommUserRank(ncclComm_t comm, int* rank) { return *rank = comm->state->rank, SUCCESS; }

// Registered memory is used like any other; that a window is all ranks' is kept.
void* const REGISTRATION = (void*)8;

int ncclCommRegister(ncclComm_t, void*, size_t, void** handle) {
  return *handle = REGISTRATION, SUCCESS;
}
int ncclCommDeregister(ncclComm_t, void*) { return SUCCESS; }

int ncclCommWindowRegister(ncclComm_t comm, void*, size_t, void** window, int) try {
  *window = REGISTRATION;
  pass_barrier(*comm->state, comm->state->shared->of_hosts);
  return SUCCESS;
} catch (Aborted&) {
  return INTERNAL_ERROR;
}

int ncclCommWindowDeregister(ncclComm_t, void*) { return SUCCESS; }
int ncclMemAlloc(void** pointer, size_t bytes) {
  return cudaMalloc(pointer, bytes) ? CUDA_ERROR : SUCCESS;
}
int ncclMemFree(void* pointer) { return cudaFree(pointer) ? CUDA_ERROR : SUCCESS; }

int ncclRedOpCreatePreMulSum(int* operation, void* scalar, int type, int residence,
                             ncclComm_t handle) {
  constexpr int ON_DEVICE = 0;
  if (!handle || type < 0 || type >= DATATYPES) return INVALID_ARGUMENT;
  Communicator& comm = *handle->state;
  Operation made;
  if (residence == ON_DEVICE) made.factor_at = scalar, made.factor_type = (Type)type;
  else made.factor = read_number(scalar, (Type)type);
  *operation = comm.next_operation++;
  comm.operations[*operation] = made;
  return SUCCESS;
}

int ncclRedOpDestroy(int operation, ncclComm_t comm) {
  return comm && comm->state->operations.erase(operation) ? SUCCESS : INVALID_ARGUMENT;
}

int ncclAllReduce(const void* in, void* out, size_t count, int type, int operation, ncclComm_t comm,
                  void* stream) {
  return add_collective("AllReduce", Kind::all_reduce, in, out, count, type, operation, 0, comm,
                        stream);
}

int ncclReduce(const void* in, void* out, size_t count, int type, int operation, int root,
               ncclComm_t comm, void* stream) {
  return add_collective("Reduce", Kind::reduce, in, out, count, type, operation, root, comm,
                        stream);
}

int ncclReduceScatter(const void* in, void* out, size_t count, int type, int operation,
                      ncclComm_t comm, void* stream) {
  return add_collective("ReduceScatter", Kind::reduce_scatter, in, out, count, type, operation, 0,
                        comm, stream);
}

int ncclAllGather(const void* in, void* out, size_t count, int type, ncclComm_t comm,
                  void* stream) {
  return add_collective("AllGather", Kind::all_gather, in, out, count, type, SUM, 0, comm, stream);
}

int ncclBroadcast(const void* in, void* out, size_t count, int type, int root, ncclComm_t comm,
                  void* stream) {
  return add_collective("Broadcast", Kind::broadcast, in, out, count, type, SUM, root, comm,
                        stream);
}

int ncclBcast(void* buffer, size_t count, int type, int root, ncclComm_t comm, void* stream) {
  return ncclBroadcast(buffer, buffer, count, type, root, comm, stream);
}

// NCCL makes these three of messages, of which its log says nothing: so they have no name here.
int ncclAlltoAll(const void* in, void* out, size_t count, int type, ncclComm_t comm, void* stream) {
  return add_collective(nullptr, Kind::all_to_all, in, out, count, type, SUM, 0, comm, stream);
}

int ncclGather(const void* in, void* out, size_t count, int type, int root, ncclComm_t comm,
               void* stream) {
  return add_collective(nullptr, Kind::gather, in, out, count, type, SUM, root, comm, stream);
}

int ncclScatter(const void* in, void* out, size_t count, int type, int root, ncclComm_t comm,
                void* stream) {
  return add_collective(nullptr, Kind::scatter, in, out, count, type, SUM, root, comm, stream);
}

int ncclSend(const void* in, size_t count, int type, int peer, ncclComm_t comm, void* stream) {
  return add_message(Kind::send, in, nullptr, count, type, peer, comm, stream);
}

int ncclRecv(void* out, size_t count, int type, int peer, ncclComm_t comm, void* stream) {
  return add_message(Kind::receive, nullptr, out, count, type, peer, comm, stream);
}

int ncclGroupStart() { return group_depth++, SUCCESS; }

int ncclGroupEnd() {
  if (group_depth == 0) return INVALID_USAGE;
  return --group_depth ? SUCCESS : issue_pending();
}

}  // extern "C"
