// libcudart.so.13 on host memory: streams are threads, events have times, graphs are captured and
// replayed. What a kernel does stands in kernels.cpp; one that does not stand there is an error.
#include <cuda_runtime_api.h>
#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

#include "fake.h"
#include "kernels.h"

using fake::Work;

namespace {

constexpr size_t LAUNCH_QUEUE = 1024;  // entries after which a launch waits, as a GPU's does
constexpr auto LOOK = std::chrono::milliseconds(50);  // between two looks whether a GPU is gone
constexpr int CUDA_VERSION_BUILT = 13000;

int64_t now_ns() {
  using namespace std::chrono;
  return duration_cast<nanoseconds>(steady_clock::now().time_since_epoch()).count();
}

std::mutex registry;  // of streams and allocations
thread_local int current = 0;
thread_local cudaError_t last_error = cudaSuccess;

cudaError_t fail(cudaError_t error) { return last_error = error; }

// A process that used CUDA and then forks is lost on a GPU, too.
void end_if_forked() {
  static const pid_t first = getpid();
  if (first == getpid()) return;
  fprintf(stderr, "[fake CUDA] CUDA was used before a fork: by %d, now in %d\n", first, getpid());
  _exit(99);
}

int visible_count() {
  end_if_forked();
  return (int)fake::visible_gpus().size();
}

int physical(int device) { return fake::visible_gpus().at(device); }

// ------------------------------------------------------------------------------ loss of a GPU

// Nothing that is asked of a GPU that is gone succeeds, nor does any wait for it end otherwise.
bool is_lost(int device) {
  return device < visible_count() && fake::is_lost(physical(device));
}

// ------------------------------------------------------------------------------ streams, events

struct Graph {
  std::vector<Work> nodes;
  unsigned long long id = 0;
};

struct Completion {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  int64_t at_ns = 0;

  void finish() {
    std::lock_guard<std::mutex> lock(mutex);
    at_ns = now_ns();
    done = true;
    changed.notify_all();
  }
  // Whether it was done before the GPU was gone.
  bool wait(int device) {
    std::unique_lock<std::mutex> lock(mutex);
    while (!changed.wait_for(lock, LOOK, [&] { return done; }))
      if (is_lost(device)) return false;
    return true;
  }
};

struct Event {
  std::shared_ptr<Completion> last;
  Graph* graph = nullptr;  // recorded while this was captured
  bool has_time = true;
};

class Stream {
 public:
  Stream(int device, int priority) : device(device), priority(priority) {}

  void push(Work work) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (!started_) std::thread([this] { run(); }).detach();
    started_ = true;
    idle_.wait(lock, [&] { return queue_.size() < LAUNCH_QUEUE; });
    queue_.push_back(std::move(work));
    added_.notify_one();
  }

  // Whether all was done before the GPU was gone.
  bool wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (!idle_.wait_for(lock, LOOK, [&] { return is_empty(); }))
      if (is_lost(device)) return false;
    return true;
  }

  bool is_done() {
    std::unique_lock<std::mutex> lock(mutex_);
    return is_empty();
  }

  const int device, priority;
  Graph* capturing = nullptr;

 private:
  bool is_empty() const { return queue_.empty() && !busy_; }

  void run() {
    pthread_setname_np(pthread_self(), "fake-stream");
    for (;;) {
      Work work;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        busy_ = false;
        idle_.notify_all();
        added_.wait(lock, [&] { return !queue_.empty(); });
        work = std::move(queue_.front());
        queue_.pop_front();
        busy_ = true;
      }
      work();
    }
  }

  std::mutex mutex_;
  std::condition_variable added_, idle_;
  std::deque<Work> queue_;
  bool busy_ = false, started_ = false;
};

std::set<Stream*>& all_streams() {
  static auto* streams = new std::set<Stream*>;
  return *streams;
}

Stream* add_stream(int device, int priority) {
  auto* stream = new Stream(device, priority);
  all_streams().insert(stream);
  return stream;
}

// The handles 0, 1, 2 are the default streams of the current device, which are one here.
Stream* stream_of(void* handle) {
  if ((uintptr_t)handle > 2) return (Stream*)handle;
  static std::map<int, Stream*> defaults;
  std::lock_guard<std::mutex> lock(registry);
  Stream*& stream = defaults[current];
  if (!stream) stream = add_stream(current, 0);
  return stream;
}

cudaError_t enqueue(void* handle, Work work) {
  Stream* stream = stream_of(handle);
  if (is_lost(stream->device)) return fail(cudaErrorUnknown);
  if (stream->capturing)
    stream->capturing->nodes.push_back(std::move(work));
  else
    stream->push(std::move(work));
  return cudaSuccess;
}

cudaError_t wait_for(Stream* stream) {
  if (stream->capturing) return fail(cudaErrorStreamCaptureUnsupported);
  if (is_lost(stream->device) || !stream->wait()) return fail(cudaErrorUnknown);
  return cudaSuccess;
}

// ------------------------------------------------------------------------------ memory

enum class Place { host, device };
struct Allocation {
  size_t bytes;
  int device;
  Place place;
};

std::map<char*, Allocation>& allocations() {
  static auto* map = new std::map<char*, Allocation>;
  return *map;
}

size_t used[fake::MAX_GPUS];  // by physical GPU, of this process

const std::pair<char* const, Allocation>* allocation_with(const void* pointer) {
  auto after = allocations().upper_bound((char*)pointer);
  if (after == allocations().begin()) return nullptr;
  auto& entry = *--after;
  return (char*)pointer < entry.first + entry.second.bytes ? &entry : nullptr;
}

// FAKE_OUT_OF_MEMORY="GPU:N": from the N-th allocation of a process on there is no memory left.
bool is_out_of_memory(int gpu, size_t bytes) {
  static long long count[fake::MAX_GPUS];
  long long at = fake::number_of_gpu("FAKE_OUT_OF_MEMORY", gpu, -1);
  bool planted = at >= 0 && ++count[gpu] >= at;
  return planted || used[gpu] + bytes > fake::memory_of_gpu();
}

// Takes memory of a device, if it is there. The caller holds the registry.
cudaError_t reserve(int device, size_t bytes) {
  int gpu = physical(device);
  if (fake::is_lost(gpu)) return cudaErrorUnknown;
  if (is_out_of_memory(gpu, bytes)) return cudaErrorMemoryAllocation;
  used[gpu] += bytes;
  return cudaSuccess;
}

}  // namespace

// ------------------------------------------------------------------------------ for the fake's own

extern "C" int fake_enqueue(void* stream, const void* work) { return enqueue(stream, *(const Work*)work); }

extern "C" bool fake_is_capturing(void* stream) { return stream_of((cudaStream_t)stream)->capturing; }

extern "C" int fake_current_gpu() { return physical(current); }

extern "C" int fake_find_allocation(const void* pointer, void** base, size_t* bytes) {
  std::lock_guard<std::mutex> lock(registry);
  auto* entry = allocation_with(pointer);
  if (entry) *base = entry->first, *bytes = entry->second.bytes;
  return entry != nullptr;
}

// Memory that libcuda creates and releases.
extern "C" int fake_reserve_memory(int device, size_t bytes) {
  std::lock_guard<std::mutex> lock(registry);
  return reserve(device, bytes);
}
extern "C" void fake_release_memory(int device, size_t bytes) {
  std::lock_guard<std::mutex> lock(registry);
  used[physical(device)] -= bytes;
}

// Memory that libcuda has mapped; 0 bytes where it is unmapped.
extern "C" void fake_register_memory(void* base, size_t bytes, int device) {
  std::lock_guard<std::mutex> lock(registry);
  if (bytes)
    allocations()[(char*)base] = {bytes, device, Place::device};
  else
    allocations().erase((char*)base);
}

extern "C" {

// ------------------------------------------------------------------------------ kernels

void** __cudaRegisterFatBinary(void*) { return (void**)calloc(1, sizeof(void*)); }
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) { return 1; }
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}

void __cudaRegisterFunction(void**, const char* host, char*, const char* name, int, uint3*, uint3*,
                            dim3*, dim3*, int*) {
  kernels::add_name(host, name);
}

static thread_local struct {
  dim3 grid, block;
  size_t shared;
  void* stream;
} configuration;

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, cudaStream_t stream) {
  configuration = {grid, block, shared, stream};
  return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  *grid = configuration.grid, *block = configuration.block, *shared = configuration.shared;
  *(void**)stream = configuration.stream;
  return cudaSuccess;
}

static cudaError_t launch(const void* function, void** arguments, cudaStream_t stream) {
  if (Work work = kernels::work_of(function, arguments)) return enqueue(stream, std::move(work));
  fprintf(stderr, "[fake CUDA] no host code for kernel %.400s\n", kernels::name_of(function));
  return fail(cudaErrorNoKernelImageForDevice);
}

cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = (cudaKernel_t)function;
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3, dim3, void** arguments, size_t, cudaStream_t stream) {
  return launch(kernel, arguments, stream);
}
cudaError_t cudaLaunchKernel(const void* function, dim3, dim3, void** arguments, size_t, cudaStream_t stream) {
  return launch(function, arguments, stream);
}
cudaError_t cudaLaunchCooperativeKernel(const void* function, dim3, dim3, void** arguments, size_t,
                                        cudaStream_t stream) {
  return launch(function, arguments, stream);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function, void** arguments) {
  return launch(function, arguments, config->stream);
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  memset(attributes, 0, sizeof *attributes);
  attributes->maxThreadsPerBlock = 1024;
  attributes->numRegs = 32;
  attributes->binaryVersion = attributes->ptxVersion = 90;
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int, size_t) {
  *blocks = 2;
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int, size_t,
                                                                   unsigned) {
  *blocks = 2;
  return cudaSuccess;
}

// ------------------------------------------------------------------------------ devices

cudaError_t cudaDriverGetVersion(int* version) {
  *version = fake::cuda_of_driver();
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDA_VERSION_BUILT;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 0;
  if (fake::cuda_of_driver() < CUDA_VERSION_BUILT) return fail(cudaErrorInsufficientDriver);
  if (long error = fake::number("FAKE_CUDA_ERROR", 0)) return fail((cudaError_t)error);
  *count = visible_count();
  return *count ? cudaSuccess : fail(cudaErrorNoDevice);
}

cudaError_t cudaGetDevice(int* device) {
  *device = current;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= visible_count()) return fail(cudaErrorInvalidDevice);
  if (is_lost(device)) return fail(cudaErrorUnknown);
  current = device;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device < 0 || device >= visible_count()) return fail(cudaErrorInvalidDevice);
  memset(properties, 0, sizeof *properties);
  int gpu = physical(device);
  snprintf(properties->name, sizeof properties->name, "%s", fake::GPU_NAME);
  for (int i = 0; i < 15; i++) properties->uuid.bytes[i] = (char)(0x10 + i);
  properties->uuid.bytes[15] = (char)gpu;
  properties->totalGlobalMem = fake::memory_of_gpu();
  properties->sharedMemPerBlock = 48 << 10;
  properties->sharedMemPerBlockOptin = 227 << 10;
  properties->sharedMemPerMultiprocessor = 228 << 10;
  properties->regsPerBlock = 65536;
  properties->warpSize = 32;
  properties->maxThreadsPerBlock = 1024;
  properties->maxThreadsPerMultiProcessor = 2048;
  properties->maxThreadsDim[0] = properties->maxThreadsDim[1] = 1024;
  properties->maxThreadsDim[2] = 64;
  properties->maxGridSize[0] = 2147483647;
  properties->maxGridSize[1] = properties->maxGridSize[2] = 65535;
  properties->major = 9;
  properties->multiProcessorCount = fake::SM_COUNT;
  properties->l2CacheSize = 50 << 20;
  properties->memoryBusWidth = 5120;
  properties->unifiedAddressing = properties->concurrentKernels = 1;
  properties->canMapHostMemory = properties->cooperativeLaunch = 1;
  properties->pciBusID = fake::bus_number(gpu);
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  cudaDeviceProp properties;
  if (cudaError_t error = cudaGetDeviceProperties(&properties, device)) return error;
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock: *value = properties.maxThreadsPerBlock; break;
    case cudaDevAttrWarpSize: *value = properties.warpSize; break;
    case cudaDevAttrMultiProcessorCount: *value = properties.multiProcessorCount; break;
    case cudaDevAttrL2CacheSize: *value = properties.l2CacheSize; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = 2048; break;
    case cudaDevAttrUnifiedAddressing: *value = 1; break;
    case cudaDevAttrComputeCapabilityMajor: *value = properties.major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = properties.minor; break;
    case cudaDevAttrCooperativeLaunch: *value = 1; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = (int)properties.sharedMemPerBlockOptin; break;
    default: *value = 0;
  }
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device) {
  snprintf(text, length, "0000:%02x:00.0", fake::bus_number(physical(device)));
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  *can = device != peer && !fake::number("FAKE_NO_P2P", 0);
  return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return cudaSuccess; }
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  std::vector<Stream*> streams;
  {
    std::lock_guard<std::mutex> lock(registry);
    for (Stream* stream : all_streams())
      if (stream->device == current && !stream->capturing) streams.push_back(stream);
  }
  for (Stream* stream : streams)
    if (cudaError_t error = wait_for(stream)) return error;
  return cudaSuccess;
}

cudaError_t cudaProfilerStart() { return cudaSuccess; }
cudaError_t cudaProfilerStop() { return cudaSuccess; }

// ------------------------------------------------------------------------------ errors

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "cudaSuccess";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorInsufficientDriver: return "cudaErrorInsufficientDriver";
    case cudaErrorNoDevice: return "cudaErrorNoDevice";
    case cudaErrorUnknown: return "cudaErrorUnknown";
    default: return "cudaError (see cudaGetErrorString)";
  }
}

const char* cudaGetErrorString(cudaError_t error) {
  static thread_local char text[40];
  switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorNotReady: return "device not ready";
    case cudaErrorInvalidDevice: return "invalid device ordinal";
    case cudaErrorNoDevice: return "no CUDA-capable device is detected";
    case cudaErrorInsufficientDriver: return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorUnknown: return "unknown error";
    case cudaErrorNotSupported: return "operation not supported";
    case cudaErrorNoKernelImageForDevice: return "no kernel image is available for execution on the device";
    case cudaErrorStreamCaptureUnsupported: return "operation not permitted when stream is capturing";
    default: snprintf(text, sizeof text, "fake CUDA error %d", (int)error); return text;
  }
}

cudaError_t cudaGetLastError() {
  cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}
cudaError_t cudaPeekAtLastError() { return last_error; }

// ------------------------------------------------------------------------------ memory

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  std::lock_guard<std::mutex> lock(registry);
  size_t whole_pages = bytes ? (bytes + 4095) & ~(size_t)4095 : 4096;
  if (cudaError_t error = reserve(current, whole_pages)) return fail(error);
  void* base = mmap(nullptr, whole_pages, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) {
    used[physical(current)] -= whole_pages;
    return fail(cudaErrorMemoryAllocation);
  }
  allocations()[(char*)base] = {whole_pages, current, Place::device};
  *pointer = base;
  return cudaSuccess;
}

cudaError_t cudaFree(void* pointer) {
  if (!pointer) return cudaSuccess;
  cudaDeviceSynchronize();
  std::lock_guard<std::mutex> lock(registry);
  auto entry = allocations().find((char*)pointer);
  if (entry == allocations().end()) return fail(cudaErrorInvalidValue);
  used[physical(entry->second.device)] -= entry->second.bytes;
  munmap(pointer, entry->second.bytes);
  allocations().erase(entry);
  return cudaSuccess;
}

cudaError_t cudaMallocAsync(void** pointer, size_t bytes, cudaStream_t) { return cudaMalloc(pointer, bytes); }
cudaError_t cudaFreeAsync(void* pointer, cudaStream_t) { return cudaFree(pointer); }

cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned) {
  if (posix_memalign(pointer, 4096, bytes ? bytes : 1)) return fail(cudaErrorMemoryAllocation);
  std::lock_guard<std::mutex> lock(registry);
  allocations()[(char*)*pointer] = {bytes ? bytes : 1, current, Place::host};
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* pointer) {
  std::lock_guard<std::mutex> lock(registry);
  allocations().erase((char*)pointer);
  free(pointer);
  return cudaSuccess;
}
cudaError_t cudaHostRegister(void*, size_t, unsigned) { return cudaSuccess; }
cudaError_t cudaHostUnregister(void*) { return cudaSuccess; }
cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned) {
  *device = host;
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* available, size_t* total) {
  std::lock_guard<std::mutex> lock(registry);
  *total = fake::memory_of_gpu();
  *available = *total - used[physical(current)];
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  std::lock_guard<std::mutex> lock(registry);
  memset(attributes, 0, sizeof *attributes);
  auto* entry = allocation_with(pointer);
  if (!entry) return cudaSuccess;  // of no type: memory that CUDA does not know
  bool on_device = entry->second.place == Place::device;
  attributes->type = on_device ? cudaMemoryTypeDevice : cudaMemoryTypeHost;
  attributes->device = entry->second.device;
  attributes->devicePointer = (void*)pointer;
  attributes->hostPointer = on_device ? nullptr : (void*)pointer;
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  cudaPointerAttributes attributes;
  cudaPointerGetAttributes(&attributes, from);
  if (kind == cudaMemcpyHostToDevice && attributes.type == cudaMemoryTypeUnregistered) {
    auto staged = std::make_shared<std::string>((const char*)from, bytes);  // pageable: copied now
    return enqueue(stream, [=] { memcpy(to, staged->data(), bytes); });
  }
  return enqueue(stream, [=] { memmove(to, from, bytes); });
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  if (cudaError_t error = cudaMemcpyAsync(to, from, bytes, kind, nullptr)) return error;
  return wait_for(stream_of(nullptr));
}
cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes, cudaStream_t stream) {
  return enqueue(stream, [=] { memmove(to, from, bytes); });
}
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind, cudaStream_t stream) {
  return enqueue(stream, [=] {
    for (size_t row = 0; row < height; row++)
      memmove((char*)to + row * to_pitch, (const char*)from + row * from_pitch, width);
  });
}
cudaError_t cudaMemcpyToSymbol(const void*, const void*, size_t, size_t, cudaMemcpyKind) { return cudaSuccess; }
cudaError_t cudaGetSymbolAddress(void** pointer, const void*) {
  *pointer = calloc(1, 4096);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  return enqueue(stream, [=] { memset(to, value, bytes); });
}
cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  if (cudaError_t error = cudaMemsetAsync(to, value, bytes, nullptr)) return error;
  return wait_for(stream_of(nullptr));
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int) {
  *pool = (cudaMemPool_t)8;
  return cudaSuccess;
}
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t, cudaMemPoolAttr, void* value) {
  *(uint64_t*)value = 0;
  return cudaSuccess;
}
cudaError_t cudaMemPoolSetAccess(cudaMemPool_t, const cudaMemAccessDesc*, size_t) { return cudaSuccess; }
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) { return cudaSuccess; }
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, size_t) { return cudaSuccess; }
cudaError_t cudaDeviceGetGraphMemAttribute(int, cudaGraphMemAttributeType, void* value) {
  *(uint64_t*)value = 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceSetGraphMemAttribute(int, cudaGraphMemAttributeType, void*) { return cudaSuccess; }

// ------------------------------------------------------------------------------ streams

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int priority) {
  std::lock_guard<std::mutex> lock(registry);
  *stream = (cudaStream_t)add_stream(current, priority);
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithPriority(stream, 0, 0); }
cudaError_t cudaStreamDestroy(cudaStream_t stream) { return wait_for(stream_of(stream)); }
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  *priority = stream_of(stream)->priority;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return wait_for(stream_of(stream)); }
cudaError_t cudaStreamQuery(cudaStream_t handle) {
  Stream* stream = stream_of(handle);
  if (is_lost(stream->device)) return fail(cudaErrorUnknown);
  return stream->is_done() ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void* data, unsigned) {
  return enqueue(stream, [=] { callback(stream, cudaSuccess, data); });
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  return enqueue(stream, [=] { function(data); });
}

// ------------------------------------------------------------------------------ events

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  auto* created = new Event;
  created->has_time = !(flags & cudaEventDisableTiming);
  *event = (cudaEvent_t)created;
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete (Event*)event;
  return cudaSuccess;
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t handle, cudaStream_t stream, unsigned) {
  auto* event = (Event*)handle;
  if (Graph* graph = stream_of(stream)->capturing) {
    event->graph = graph;
    event->last.reset();
    return cudaSuccess;
  }
  auto completion = std::make_shared<Completion>();
  event->last = completion;
  event->graph = nullptr;
  return enqueue(stream, [completion] { completion->finish(); });
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return cudaEventRecordWithFlags(event, stream, 0);
}

cudaError_t cudaEventQuery(cudaEvent_t handle) {
  auto* event = (Event*)handle;
  if (event->graph) return fail(cudaErrorStreamCaptureUnsupported);
  if (is_lost(current)) return fail(cudaErrorUnknown);
  if (!event->last) return cudaSuccess;
  std::lock_guard<std::mutex> lock(event->last->mutex);
  return event->last->done ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  auto completion = ((Event*)handle)->last;
  if (is_lost(current) || (completion && !completion->wait(current))) return fail(cudaErrorUnknown);
  return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t first, cudaEvent_t second) {
  auto *begin = (Event*)first, *end = (Event*)second;
  if (!begin->last || !end->last || !begin->has_time || !end->has_time) return fail(cudaErrorInvalidResourceHandle);
  if (!begin->last->done || !end->last->done) return fail(cudaErrorNotReady);
  *ms = (float)(end->last->at_ns - begin->last->at_ns) / 1e6f;
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t awaited, unsigned) {
  auto* event = (Event*)awaited;
  Stream* stream = stream_of(handle);
  if (event->graph) {  // the other stream joins the capture
    stream->capturing = event->graph;
    return cudaSuccess;
  }
  auto completion = event->last;
  if (stream->capturing) return completion ? fail(cudaErrorStreamCaptureIsolation) : cudaSuccess;
  int device = stream->device;
  return completion ? enqueue(handle, [completion, device] { completion->wait(device); }) : cudaSuccess;
}

// ------------------------------------------------------------------------------ graphs

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  if ((uintptr_t)stream <= 2) return fail(cudaErrorStreamCaptureUnsupported);
  static std::atomic<unsigned long long> ids{1};
  auto* graph = new Graph;
  graph->id = ids++;
  stream_of(stream)->capturing = graph;
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t stream, cudaGraph_t graph, const cudaGraphNode_t*,
                                          const cudaGraphEdgeData*, size_t, cudaStreamCaptureMode) {
  stream_of(stream)->capturing = (Graph*)graph;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  Graph* captured = stream_of(handle)->capturing;
  if (!captured) return fail(cudaErrorIllegalState);
  std::lock_guard<std::mutex> lock(registry);
  for (Stream* stream : all_streams())
    if (stream->capturing == captured) stream->capturing = nullptr;
  *graph = (cudaGraph_t)captured;
  return cudaSuccess;
}
static cudaStreamCaptureStatus capture_status(Stream* stream) {
  return stream->capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  *status = capture_status(stream_of(stream));
  return cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t handle, cudaStreamCaptureStatus* status, unsigned long long* id,
                                     cudaGraph_t* graph, const cudaGraphNode_t** dependencies,
                                     const cudaGraphEdgeData** edges, size_t* count) {
  Stream* stream = stream_of(handle);
  *status = capture_status(stream);
  if (id) *id = stream->capturing ? stream->capturing->id : 0;
  if (graph) *graph = (cudaGraph_t)stream->capturing;
  if (dependencies) *dependencies = nullptr;
  if (edges) *edges = nullptr;
  if (count) *count = 0;
  return cudaSuccess;
}
cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t, cudaGraphNode_t*, const cudaGraphEdgeData*, size_t,
                                                unsigned) {
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  static thread_local cudaStreamCaptureMode kept = cudaStreamCaptureModeGlobal;
  std::swap(kept, *mode);
  return cudaSuccess;
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t*, size_t* count) {
  *count = ((Graph*)graph)->nodes.size();
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  auto* nodes = new std::shared_ptr<std::vector<Work>>(new std::vector<Work>(((Graph*)graph)->nodes));
  *executable = (cudaGraphExec_t)nodes;
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long flags) {
  return cudaGraphInstantiateWithFlags(executable, graph, flags);
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  auto nodes = *(std::shared_ptr<std::vector<Work>>*)executable;
  return enqueue(stream, [nodes] {
    for (const Work& node : *nodes) node();
  });
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete (Graph*)graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  delete (std::shared_ptr<std::vector<Work>>*)executable;
  return cudaSuccess;
}
cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t, cudaGraphNode_t*, cudaGraphEdgeData*, size_t* count) {
  *count = 0;
  return cudaSuccess;
}
cudaError_t cudaGraphRetainUserObject(cudaGraph_t, cudaUserObject_t, unsigned, unsigned) { return cudaSuccess; }
cudaError_t cudaUserObjectCreate(cudaUserObject_t* object, void*, cudaHostFn_t, unsigned, unsigned) {
  *object = (cudaUserObject_t)8;
  return cudaSuccess;
}
cudaError_t cudaUserObjectRelease(cudaUserObject_t, unsigned) { return cudaSuccess; }

// ------------------------------------------------------------------------------ the driver's functions

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  static void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  *function = driver ? dlsym(driver, name) : nullptr;
  if (result) *result = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}

}  // extern "C"
