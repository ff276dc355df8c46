// libnvidia-ml.so.1: what NVML says of the fake's GPUs. All of it stands in the environment.
//
// Of a GPU, "GPU:VALUE[,...]" or "VALUE" for all of them:
//   FAKE_SM_MHZ=1:1410      the clock it runs at        FAKE_TEMPERATURE=0:91    degrees
//   FAKE_POWER_W=0:700      watts                       FAKE_MIG=1               MIG mode is on
//   FAKE_REASONS=0:0x40@3-9 why its clock is held back; @ from the 3rd to the 8th time that this
//                           process asks, counted from 0 (@3- has no end)
//   FAKE_XID=0:79           a critical error, which a process gets once, after its first look
// Counters of the GPUs that are listed rise by one each time they are read:
//   FAKE_ECC=0,3            FAKE_NVLINK_ERRORS=1        FAKE_PCIE_REPLAYS=2
// FAKE_GPUS, FAKE_MIB and FAKE_DRIVER_CUDA=12040 are those of the other libraries. A GPU that is
// lost answers nothing but that.
#include <atomic>
#include <map>
#include <mutex>

#include "fake.h"

namespace {

// nvmlReturn_t
enum Result {
  SUCCESS = 0,
  INVALID_ARGUMENT = 2,
  NOT_SUPPORTED = 3,
  NOT_FOUND = 6,
  INSUFFICIENT_SIZE = 7,
  TIMEOUT = 10,
  GPU_IS_LOST = 15
};

using Handle = void*;  // of GPU i: i + 1, and of its MIG instance MIG_HANDLES more

constexpr intptr_t MIG_HANDLES = 1000;
constexpr unsigned LINKS = 18, MEMORY_MHZ = 2619;
constexpr int MEMORY_CLOCK = 2;  // nvmlClockType_t

Handle handle_of(int gpu) { return (Handle)(intptr_t)(gpu + 1); }
Handle mig_handle_of(int gpu) { return (Handle)(gpu + 1 + MIG_HANDLES); }
bool is_mig(Handle handle) { return (intptr_t)handle > MIG_HANDLES; }

int gpu_of(Handle handle) {
  intptr_t number = (intptr_t)handle;
  return (int)(is_mig(handle) ? number - MIG_HANDLES : number) - 1;
}

Result check(Handle handle) {
  int gpu = gpu_of(handle);
  if (gpu < 0 || gpu >= fake::physical_gpus()) return INVALID_ARGUMENT;
  return fake::is_lost(gpu) ? GPU_IS_LOST : SUCCESS;
}

template <typename Value, typename Known>
Result answer(Handle handle, Value* value, Known known) {
  Result result = check(handle);
  if (result == SUCCESS) *value = (Value)known;
  return result;
}

Result copy_text(const std::string& text, char* into, unsigned room) {
  if (text.size() >= room) return INSUFFICIENT_SIZE;
  strcpy(into, text.c_str());
  return SUCCESS;
}

std::string bus_id(int bus) {
  char text[32];
  snprintf(text, sizeof text, "00000000:%02X:00.0", bus);
  return text;
}

// A counter of one GPU: it rises at each reading where `setting` lists the GPU.
unsigned read_counter(const char* setting, int gpu) {
  static std::map<std::string, unsigned> counters;
  static std::mutex lock;
  std::lock_guard<std::mutex> guard(lock);
  unsigned& counter = counters[setting + std::to_string(gpu)];
  for (const std::string& listed : fake::split(fake::setting(setting), ','))
    if (atoi(listed.c_str()) == gpu) return ++counter;
  return counter;
}

// FAKE_REASONS of a GPU, in the window of readings that it names, if it does.
unsigned long long read_reasons(int gpu) {
  static std::atomic<long> readings[fake::MAX_GPUS];
  long reading = readings[gpu]++;
  std::string setting = fake::setting_of_gpu("FAKE_REASONS", gpu).value_or("0");
  long from = 0, until = -1;
  if (size_t at = setting.find('@'); at != std::string::npos)
    sscanf(setting.c_str() + at, "@%ld-%ld", &from, &until);
  bool holds = reading >= from && (until < 0 || reading < until);
  return holds ? strtoull(setting.c_str(), nullptr, 0) : 0;
}

bool is_mig_on(int gpu) { return fake::number_of_gpu("FAKE_MIG", gpu, 0); }

unsigned sm_mhz(int gpu) {
  return (unsigned)fake::number_of_gpu("FAKE_SM_MHZ", gpu, fake::DEFAULT_SM_MHZ);
}

int temperature(int gpu) { return (int)fake::number_of_gpu("FAKE_TEMPERATURE", gpu, 41); }

struct PciInfo {
  char legacy_bus_id[16];
  unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
  char bus_id[32];
};

void describe_bus(int bus, PciInfo* info) {
  memset(info, 0, sizeof *info);
  info->bus = bus;
  strcpy(info->legacy_bus_id, bus_id(bus).c_str() + 4);
  strcpy(info->bus_id, bus_id(bus).c_str());
}

struct FieldValue {
  unsigned field, scope;
  long long timestamp, latency_us;
  unsigned type;
  int result;
  unsigned long long value;
};

// NVLink's traffic of all links together, which nothing counts here, and its errors of two kinds,
// as GPUs before NVLink 5 have them; the planted ones are replays.
void read_field(int gpu, FieldValue& field) {
  constexpr unsigned CRC_FLIT = 38, REPLAY = 52, SENT = 138, RECEIVED = 139;
  constexpr unsigned ALL_LINKS = 0xffffffff, UNSIGNED_LONG_LONG = 3;
  bool is_traffic = (field.field == SENT || field.field == RECEIVED) && field.scope == ALL_LINKS;
  bool is_known = is_traffic || field.field == CRC_FLIT || field.field == REPLAY;
  field.result = is_known ? SUCCESS : NOT_SUPPORTED;
  field.type = UNSIGNED_LONG_LONG;
  field.value = field.field == REPLAY ? read_counter("FAKE_NVLINK_ERRORS", gpu) : 0;
}

struct EventData {
  Handle device;
  unsigned long long type, data;
  unsigned gpu_instance, compute_instance;
};

constexpr unsigned long long XID_EVENT = 8;  // nvmlEventTypeXidCriticalError

// The GPUs that a program watches in one set of events. The first look finds nothing, so that an
// error comes while it watches and not before.
struct EventSet {
  std::vector<int> gpus;
  int looks = 0;
};

bool take_xid(EventSet& set, EventData* event) {
  static std::atomic<bool> is_taken[fake::MAX_GPUS];
  if (set.looks++ == 0) return false;
  for (int gpu : set.gpus) {
    long long xid = fake::number_of_gpu("FAKE_XID", gpu, 0);
    if (xid == 0 || is_taken[gpu].exchange(true)) continue;
    *event = {handle_of(gpu), XID_EVENT, (unsigned long long)xid, ~0u, ~0u};
    return true;
  }
  return false;
}

}  // namespace

extern "C" {

// A question with one answer of its type, in which `gpu` is the GPU's number.
#define ANSWER(name, Type, expression)                  \
  int nvmlDeviceGet##name(Handle handle, Type* value) { \
    if (int result = check(handle)) return result;      \
    [[maybe_unused]] int gpu = gpu_of(handle);          \
    *value = expression;                                \
    return SUCCESS;                                     \
  }

// ---- The library and the driver ----

int nvmlInit() { return SUCCESS; }
int nvmlInit_v2() { return SUCCESS; }
int nvmlInitWithFlags(unsigned) { return SUCCESS; }
int nvmlShutdown() { return SUCCESS; }

const char* nvmlErrorString(int result) {
  switch (result) {
    case SUCCESS: return "Success";
    case INVALID_ARGUMENT: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case NOT_FOUND: return "Not Found";
    case INSUFFICIENT_SIZE: return "Insufficient Size";
    case TIMEOUT: return "Timeout";
    case GPU_IS_LOST: return "GPU is lost";
    default: return "Unknown Error";
  }
}

int nvmlSystemGetDriverVersion(char* version, unsigned room) {
  int cuda = fake::cuda_of_driver();
  const char* text = cuda >= 13000 ? "580.95.05" : cuda >= 12080 ? "570.124.06" : "550.54.15";
  return copy_text(text, version, room);
}

int nvmlSystemGetCudaDriverVersion(int* version) {
  *version = fake::cuda_of_driver();
  return SUCCESS;
}

int nvmlSystemGetCudaDriverVersion_v2(int* version) {
  return nvmlSystemGetCudaDriverVersion(version);
}

// ---- Which GPUs there are ----

int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = fake::physical_gpus();
  return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Handle* handle) {
  *handle = handle_of(index);
  return check(*handle);
}

int nvmlDeviceGetHandleByUUID(const char* uuid, Handle* handle) {
  for (int gpu = 0; gpu < fake::physical_gpus(); gpu++) {
    bool is_instance = is_mig_on(gpu) && fake::mig_uuid(gpu) == uuid;
    if (!is_instance && fake::uuid(gpu) != uuid) continue;
    *handle = is_instance ? mig_handle_of(gpu) : handle_of(gpu);
    return check(*handle);
  }
  return NOT_FOUND;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char* text, Handle* handle) {
  unsigned domain = 0, bus = 0;
  sscanf(text, "%x:%x", &domain, &bus);
  for (int gpu = 0; gpu < fake::physical_gpus(); gpu++)
    if (fake::bus_number(gpu) == (int)bus) return *handle = handle_of(gpu), check(*handle);
  return NOT_FOUND;
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Handle instance, Handle* handle) {
  if (!is_mig(instance)) return INVALID_ARGUMENT;
  *handle = handle_of(gpu_of(instance));
  return check(*handle);
}

ANSWER(Index, unsigned, gpu)

int nvmlDeviceGetName(Handle handle, char* name, unsigned room) {
  if (int result = check(handle)) return result;
  return copy_text(fake::GPU_NAME, name, room);
}

int nvmlDeviceGetUUID(Handle handle, char* uuid, unsigned room) {
  if (int result = check(handle)) return result;
  int gpu = gpu_of(handle);
  return copy_text(is_mig(handle) ? fake::mig_uuid(gpu) : fake::uuid(gpu), uuid, room);
}

int nvmlDeviceGetPciInfo_v3(Handle handle, PciInfo* info) {
  if (int result = check(handle)) return result;
  describe_bus(fake::bus_number(gpu_of(handle)), info);
  return SUCCESS;
}

// ---- What a GPU is ----

ANSWER(NumGpuCores, unsigned, 128 * fake::SM_COUNT)
ANSWER(PersistenceMode, int, 1)
ANSWER(PowerManagementLimit, unsigned, 700'000)  // milliwatts
ANSWER(CurrPcieLinkGeneration, unsigned, 5)
ANSWER(MaxPcieLinkGeneration, unsigned, 5)
ANSWER(CurrPcieLinkWidth, unsigned, 16)
ANSWER(MaxPcieLinkWidth, unsigned, 16)

int nvmlDeviceGetCudaComputeCapability(Handle handle, int* major, int* minor) {
  *minor = 0;
  return answer(handle, major, 9);
}

// The driver keeps a part for itself; what processes use of a GPU is not known here.
int nvmlDeviceGetMemoryInfo(Handle handle, unsigned long long* total_free_used) {
  if (int result = check(handle)) return result;
  unsigned long long total = fake::memory_of_gpu(), used = total / 64;
  total_free_used[0] = total, total_free_used[1] = total - used, total_free_used[2] = used;
  return SUCCESS;
}

int nvmlDeviceGetMigMode(Handle handle, unsigned* current, unsigned* pending) {
  *pending = is_mig_on(gpu_of(handle));
  return answer(handle, current, *pending);
}

int nvmlDeviceGetEccMode(Handle handle, int* current, int* pending) {
  *pending = 1;
  return answer(handle, current, 1);
}

int nvmlDeviceGetMaxClockInfo(Handle handle, int clock, unsigned* mhz) {
  return answer(handle, mhz, clock == MEMORY_CLOCK ? MEMORY_MHZ : fake::DEFAULT_SM_MHZ);
}

int nvmlDeviceGetDefaultApplicationsClock(Handle handle, int clock, unsigned* mhz) {
  return nvmlDeviceGetMaxClockInfo(handle, clock, mhz);
}

// ---- How it does ----

ANSWER(PowerUsage, unsigned, 1000 * fake::number_of_gpu("FAKE_POWER_W", gpu, 121))
ANSWER(CurrentClocksEventReasons, unsigned long long, read_reasons(gpu))
ANSWER(CurrentClocksThrottleReasons, unsigned long long, read_reasons(gpu))  // its older name
ANSWER(PcieReplayCounter, unsigned, read_counter("FAKE_PCIE_REPLAYS", gpu))

int nvmlDeviceGetTotalEccErrors(Handle handle, int, int, unsigned long long* errors) {
  if (int result = check(handle)) return result;
  *errors = read_counter("FAKE_ECC", gpu_of(handle));
  return SUCCESS;
}

int nvmlDeviceGetClockInfo(Handle handle, int clock, unsigned* mhz) {
  return answer(handle, mhz, clock == MEMORY_CLOCK ? MEMORY_MHZ : sm_mhz(gpu_of(handle)));
}

int nvmlDeviceGetTemperature(Handle handle, int, unsigned* celsius) {
  return answer(handle, celsius, temperature(gpu_of(handle)));
}

int nvmlDeviceGetTemperatureV(Handle handle, int* version_sensor_celsius) {
  return answer(handle, &version_sensor_celsius[2], temperature(gpu_of(handle)));
}

int nvmlDeviceGetFieldValues(Handle handle, int count, FieldValue* fields) {
  if (int result = check(handle)) return result;
  for (int i = 0; i < count; i++) read_field(gpu_of(handle), fields[i]);
  return SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses(Handle handle, unsigned* count, void*) {
  return answer(handle, count, 0);
}

int nvmlDeviceGetComputeRunningProcesses_v3(Handle handle, unsigned* count, void*) {
  return answer(handle, count, 0);
}

int nvmlEventSetCreate(EventSet** set) {
  *set = new EventSet;
  return SUCCESS;
}

int nvmlEventSetFree(EventSet* set) {
  delete set;
  return SUCCESS;
}

int nvmlDeviceRegisterEvents(Handle handle, unsigned long long types, EventSet* set) {
  if (int result = check(handle)) return result;
  if (types & XID_EVENT) set->gpus.push_back(gpu_of(handle));
  return SUCCESS;
}

int nvmlEventSetWait_v2(EventSet* set, EventData* event, unsigned) {
  return take_xid(*set, event) ? SUCCESS : TIMEOUT;
}

// ---- How GPUs are connected: by a switch, or with FAKE_NO_P2P through PCIe alone ----

bool has_links() { return !fake::number("FAKE_NO_P2P", 0); }

int nvmlDeviceGetNvLinkState(Handle handle, unsigned link, unsigned* is_active) {
  return link < LINKS ? answer(handle, is_active, has_links()) : INVALID_ARGUMENT;
}

int nvmlDeviceGetNvLinkRemoteDeviceType(Handle handle, unsigned link, unsigned* type) {
  constexpr unsigned SWITCH = 2;
  return link < LINKS ? answer(handle, type, SWITCH) : INVALID_ARGUMENT;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(Handle handle, unsigned link, PciInfo* info) {
  if (link >= LINKS) return INVALID_ARGUMENT;
  if (int result = check(handle)) return result;
  constexpr int SWITCHES_FROM = 0xc0, SWITCHES = 4;
  describe_bus(SWITCHES_FROM + link % SWITCHES, info);
  return SUCCESS;
}

int nvmlDeviceGetTopologyCommonAncestor(Handle handle, Handle, int* level) {
  constexpr int NODE = 40;
  return answer(handle, level, NODE);
}

int nvmlDeviceGetP2PStatus(Handle handle, Handle, int, int* status) {
  constexpr int OK = 0, GPU_NOT_SUPPORTED = 2;
  return answer(handle, status, has_links() ? OK : GPU_NOT_SUPPORTED);
}

// GPUs of one host are in no fabric: torch 2.13 takes no other answer than success.
struct FabricInfo {
  unsigned version;
  unsigned char cluster[16];
  int status;
  unsigned clique;
  unsigned char state;
};
int nvmlDeviceGetGpuFabricInfoV(Handle, FabricInfo* info) {
  memset((char*)info + sizeof info->version, 0, sizeof *info - sizeof info->version);
  return SUCCESS;
}

}  // extern "C"
