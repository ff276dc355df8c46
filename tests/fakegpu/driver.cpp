// libcuda.so.1 on host memory: virtual memory that processes share (torch's symmetric memory),
// multicast addresses, and what Triton's launcher calls. The one Triton kernel that runs is
// collbench's own, in walk.cpp.
#include <cuda.h>
#include <fcntl.h>
#include <sys/mman.h>

#include <atomic>
#include <map>
#include <mutex>

#include "fake.h"
#include "walk.h"

#undef cuCtxGetDevice
#undef cuDeviceGetUuid
#undef cuDeviceTotalMem
#undef cuGetProcAddress
#undef cuMemGetAddressRange
#undef cuStreamWriteValue32

namespace {

constexpr size_t GRANULARITY = 2 << 20;

// libcudart holds the streams, the allocations and the current device; who loaded libcuda loaded it.
template <typename Function>
Function* in_runtime(const char* name) {
  return (Function*)dlsym(RTLD_DEFAULT, name);
}

CUresult enqueue(CUstream stream, fake::Work work) {
  return (CUresult)in_runtime<int(void*, const void*)>("fake_enqueue")(stream, &work);
}

void register_memory(CUdeviceptr base, size_t bytes, int device) {
  in_runtime<void(void*, size_t, int)>("fake_register_memory")((void*)base, bytes, device);
}

// Nothing that is asked of a GPU that is gone succeeds.
CUresult refuse_lost_gpu() {
  bool lost = fake::is_lost(in_runtime<int()>("fake_current_gpu")());
  return lost ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}

int visible_count() { return (int)fake::visible_gpus().size(); }

// An allocation is a memfd, so that other processes can map it. `bytes` are those that this process
// has taken of the device's memory: none of another's.
struct Memory {
  int fd;
  int device;
  bool is_multicast;
  size_t bytes = 0;
};

// What a multicast object's memfd holds: whose memory is bound to it.
struct MulticastTable {
  std::atomic<int> count;
  struct {
    pid_t process;
    int fd;
    size_t bytes;
  } members[fake::MAX_GPUS];
};

MulticastTable* map_table(int fd) {
  void* table = mmap(nullptr, sizeof(MulticastTable), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return (MulticastTable*)table;
}

struct MulticastRange {
  size_t bytes;
  MulticastTable* table;
  std::vector<char*> members;  // mapped when they are first looked for
};

std::mutex multicast_mutex;
std::map<char*, MulticastRange>& multicast_ranges() {
  static auto* ranges = new std::map<char*, MulticastRange>;
  return *ranges;
}

thread_local CUcontext context = (CUcontext)0x100;

CUresult attribute_of_device(int* value, CUdevice_attribute attribute) {
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK: *value = 48 << 10; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *value = 227 << 10; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: *value = 228 << 10; break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = fake::SM_COUNT; break;
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE: *value = 50 << 20; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = 9; break;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE: *value = 32; break;
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED: *value = 1; break;
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED: *value = 1; break;
    case CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED: *value = fake::number("FAKE_MULTICAST", 0) != 0; break;
    default: *value = 0;
  }
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

CUresult cuInit(unsigned) {
  if (long error = fake::number("FAKE_CUDA_ERROR", 0)) return (CUresult)error;
  return visible_count() ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}
CUresult cuDriverGetVersion(int* version) {
  *version = fake::cuda_of_driver();
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetCount(int* count) {
  *count = visible_count();
  return CUDA_SUCCESS;
}
CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  *device = ordinal;
  return ordinal < visible_count() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
CUresult cuDeviceGetName(char* text, int length, CUdevice) {
  snprintf(text, length, "%s", fake::GPU_NAME);
  return CUDA_SUCCESS;
}
CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice) {
  *bytes = fake::memory_of_gpu();
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
  for (int i = 0; i < 15; i++) uuid->bytes[i] = (char)(0x10 + i);
  uuid->bytes[15] = (char)fake::visible_gpus().at(device);
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) { return cuDeviceGetUuid(uuid, device); }
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
  return attribute_of_device(value, attribute);
}
CUresult cuGetErrorString(CUresult error, const char** text) {
  static thread_local char buffer[40];
  snprintf(buffer, sizeof buffer, "fake CUDA driver error %d", (int)error);
  *text = buffer;
  return CUDA_SUCCESS;
}

// ------------------------------------------------------------------------------ contexts

CUresult cuCtxGetCurrent(CUcontext* current) {
  *current = context;
  return CUDA_SUCCESS;
}
CUresult cuCtxSetCurrent(CUcontext wanted) {
  context = wanted;
  return CUDA_SUCCESS;
}
CUresult cuCtxGetDevice(CUdevice* device) { return (CUresult)in_runtime<int(int*)>("cudaGetDevice")(device); }
CUresult cuCtxGetLimit(size_t* value, CUlimit) {
  *value = 0;
  return CUDA_SUCCESS;
}
CUresult cuCtxSetLimit(CUlimit, size_t) { return CUDA_SUCCESS; }
CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned* flags, int* active) {
  *flags = 0;
  *active = 1;
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext* primary, CUdevice) {
  *primary = context;
  return CUDA_SUCCESS;
}

// ------------------------------------------------------------------------------ virtual memory

CUresult cuMemGetAllocationGranularity(size_t* bytes, const CUmemAllocationProp*, CUmemAllocationGranularity_flags) {
  *bytes = GRANULARITY;
  return CUDA_SUCCESS;
}
CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes, const CUmemAllocationProp* properties,
                     unsigned long long) {
  int device = properties->location.id;
  if (device < 0 || device >= visible_count()) return CUDA_ERROR_INVALID_DEVICE;
  if (int error = in_runtime<int(int, size_t)>("fake_reserve_memory")(device, bytes)) return (CUresult)error;
  int fd = memfd_create("fake-gpu", 0);
  if (fd < 0 || ftruncate(fd, (off_t)bytes)) {
    in_runtime<void(int, size_t)>("fake_release_memory")(device, bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *handle = (CUmemGenericAllocationHandle) new Memory{fd, device, false, bytes};
  return CUDA_SUCCESS;
}
CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  auto* memory = (Memory*)handle;
  if (memory->bytes) in_runtime<void(int, size_t)>("fake_release_memory")(memory->device, memory->bytes);
  close(memory->fd);
  delete memory;
  return CUDA_SUCCESS;
}
CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle*, void*) { return CUDA_ERROR_NOT_SUPPORTED; }

CUresult cuMemAddressReserve(CUdeviceptr* base, size_t bytes, size_t alignment, CUdeviceptr, unsigned long long) {
  if (!alignment) alignment = GRANULARITY;
  char* start = (char*)mmap(nullptr, bytes + alignment, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (start == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  *base = ((CUdeviceptr)start + alignment - 1) / alignment * alignment;
  return CUDA_SUCCESS;
}
CUresult cuMemAddressFree(CUdeviceptr base, size_t bytes) {
  munmap((void*)base, bytes);
  return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr base, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long) {
  if (CUresult error = refuse_lost_gpu()) return error;
  auto* memory = (Memory*)handle;
  if (memory->is_multicast) {
    std::lock_guard<std::mutex> lock(multicast_mutex);
    multicast_ranges()[(char*)base] = {bytes, map_table(memory->fd), {}};
    return CUDA_SUCCESS;
  }
  void* at = mmap((void*)base, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, memory->fd, (off_t)offset);
  if (at == MAP_FAILED) return CUDA_ERROR_UNKNOWN;
  register_memory(base, bytes, memory->device);
  return CUDA_SUCCESS;
}
CUresult cuMemUnmap(CUdeviceptr base, size_t bytes) {
  {
    std::lock_guard<std::mutex> lock(multicast_mutex);
    if (multicast_ranges().erase((char*)base)) return CUDA_SUCCESS;
  }
  register_memory(base, 0, 0);
  mmap((void*)base, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
  return CUDA_SUCCESS;
}
CUresult cuMemSetAccess(CUdeviceptr, size_t, const CUmemAccessDesc*, size_t) { return CUDA_SUCCESS; }
CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* properties, CUmemGenericAllocationHandle) {
  memset(properties, 0, sizeof *properties);
  return CUDA_SUCCESS;
}

CUresult cuMemExportToShareableHandle(void* shareable, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long) {
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
  *(int*)shareable = dup(((Memory*)handle)->fd);
  return CUDA_SUCCESS;
}
static bool holds_multicast(int fd);
CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* shareable,
                                        CUmemAllocationHandleType) {
  if (CUresult error = refuse_lost_gpu()) return error;
  if (fake::number("FAKE_NO_P2P", 0)) return CUDA_ERROR_INVALID_DEVICE;
  int fd = dup((int)(intptr_t)shareable);
  *handle = (CUmemGenericAllocationHandle) new Memory{fd, 0, holds_multicast(fd)};
  return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void* value, CUpointer_attribute attribute, CUdeviceptr pointer) {
  if (attribute == CU_POINTER_ATTRIBUTE_DEVICE_POINTER)
    *(CUdeviceptr*)value = pointer;
  else
    *(int*)value = CU_MEMORYTYPE_DEVICE;
  return CUDA_SUCCESS;
}
CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* bytes, CUdeviceptr pointer) {
  auto find = in_runtime<int(const void*, void**, size_t*)>("fake_find_allocation");
  void* start = nullptr;
  size_t length = 0;
  if (!find((void*)pointer, &start, &length)) return CUDA_ERROR_INVALID_VALUE;
  *base = (CUdeviceptr)start;
  *bytes = length;
  return CUDA_SUCCESS;
}
CUresult cuMemGetAddressRange(CUdeviceptr* base, size_t* bytes, CUdeviceptr pointer) {
  return cuMemGetAddressRange_v2(base, bytes, pointer);
}

// ------------------------------------------------------------------------------ multicast

static const char MULTICAST_FILE[] = "fake-multicast";

static bool holds_multicast(int fd) {
  char link[64], target[128] = {};
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  return readlink(link, target, sizeof target - 1) > 0 && strstr(target, MULTICAST_FILE);
}

CUresult cuMulticastGetGranularity(size_t* bytes, const CUmulticastObjectProp*, CUmulticastGranularity_flags) {
  *bytes = GRANULARITY;
  return CUDA_SUCCESS;
}
CUresult cuMulticastCreate(CUmemGenericAllocationHandle* handle, const CUmulticastObjectProp*) {
  if (CUresult error = refuse_lost_gpu()) return error;
  if (fake::number("FAKE_NO_FABRIC", 0)) return CUDA_ERROR_SYSTEM_NOT_READY;
  int fd = memfd_create(MULTICAST_FILE, 0);
  if (fd < 0 || ftruncate(fd, sizeof(MulticastTable))) return CUDA_ERROR_OUT_OF_MEMORY;
  *handle = (CUmemGenericAllocationHandle) new Memory{fd, 0, true};
  return CUDA_SUCCESS;
}
CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle, CUdevice) { return CUDA_SUCCESS; }
CUresult cuMulticastBindMem(CUmemGenericAllocationHandle handle, size_t, CUmemGenericAllocationHandle bound, size_t,
                            size_t bytes, unsigned long long) {
  MulticastTable* table = map_table(((Memory*)handle)->fd);
  int index = table->count++;
  table->members[index] = {getpid(), dup(((Memory*)bound)->fd), bytes};
  munmap(table, sizeof *table);
  return CUDA_SUCCESS;
}
CUresult cuMulticastUnbind(CUmemGenericAllocationHandle, CUdevice, size_t, size_t) { return CUDA_SUCCESS; }

// For kernels.cpp: where in this process the memory of each member lies that `pointer` stands for.
size_t fake_find_multicast(void* pointer, char** members, size_t room) {
  std::lock_guard<std::mutex> lock(multicast_mutex);
  auto range = multicast_ranges().upper_bound((char*)pointer);
  if (range == multicast_ranges().begin()) return 0;
  auto& [base, multicast] = *--range;
  for (int i = (int)multicast.members.size(); i < multicast.table->count; i++) {
    auto& member = multicast.table->members[i];
    std::string path = "/proc/" + std::to_string(member.process) + "/fd/" + std::to_string(member.fd);
    int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
    void* at = mmap(nullptr, member.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (at == MAP_FAILED) return 0;
    multicast.members.push_back((char*)at);
  }
  size_t count = std::min(room, multicast.members.size());
  for (size_t i = 0; i < count; i++) members[i] = multicast.members[i] + ((char*)pointer - base);
  return count;
}

// ------------------------------------------------------------------------------ work on streams

CUresult cuMemsetD32Async(CUdeviceptr pointer, unsigned value, size_t count, CUstream stream) {
  return enqueue(stream, [=] { std::fill_n((unsigned*)pointer, count, value); });
}
// Triton 3.9's launcher asks for it.
CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  return (CUresult)in_runtime<int(CUstream, CUstreamCaptureStatus*)>("cudaStreamIsCapturing")(stream, status);
}
CUresult cuStreamWriteValue32(CUstream stream, CUdeviceptr pointer, unsigned value, unsigned) {
  return enqueue(stream, [=] { *(volatile unsigned*)pointer = value; });
}
CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr pointer, unsigned value, unsigned flags) {
  return cuStreamWriteValue32(stream, pointer, value, flags);
}

// ------------------------------------------------------------------------------ Triton's kernels

// fakeops.py says what a kernel was specialised for, right before Triton loads it: "name key=value ...".
static thread_local std::string next_kernel;
void fake_describe_kernel(const char* description) { next_kernel = description; }

CUresult cuModuleLoadData(CUmodule* module, const void*) {
  *module = (CUmodule) new std::string(next_kernel);
  return CUDA_SUCCESS;
}
CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char*) {
  *function = (CUfunction) new walk::Kernel(*(std::string*)module);
  return CUDA_SUCCESS;
}
CUresult cuModuleUnload(CUmodule) { return CUDA_SUCCESS; }
CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction) {
  *value = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 512 : attribute == CU_FUNC_ATTRIBUTE_NUM_REGS ? 112 : 0;
  return CUDA_SUCCESS;
}
CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute, int) { return CUDA_SUCCESS; }
CUresult cuFuncSetCacheConfig(CUfunction, CUfunc_cache) { return CUDA_SUCCESS; }

CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** arguments, void**) {
  auto* kernel = (walk::Kernel*)function;
  if (!kernel->is_known()) {
    fprintf(stderr, "[fake CUDA] no host code for Triton kernel %s\n", kernel->description().c_str());
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  return enqueue(config->hStream, kernel->work((int)config->gridDimX, (int)config->gridDimY, arguments));
}

CUresult cuGetProcAddress_v2(const char* name, void** function, int, cuuint64_t, CUdriverProcAddressQueryResult* result) {
  *function = dlsym(RTLD_DEFAULT, name);
  if (!*function) *function = dlsym(dlopen("libcuda.so.1", RTLD_NOW), name);
  if (result) *result = *function ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

}  // extern "C"
