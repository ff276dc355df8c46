// Host code for the kernels of torch that collbench launches: torch.cuda._sleep and the collectives
// of torch.ops.symm_mem, whose parameters are those of torch's CUDASymmetricMemoryOps.cu.
//
// Ranks of symmetric memory meet as torch's blocks do, by flags in each other's signal pads: a rank
// sets its flag in a peer's pad when it is 0, and waits for the peer's flag in its own pad, which it
// sets back to 0.
#include "kernels.h"

#include <cxxabi.h>

#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <thread>

#include "elements.h"

namespace kernels {
namespace {

// The memory of all ranks that a multicast address stands for; libcuda knows it.
std::vector<char*> multicast_members(void* pointer) {
  static auto find = (size_t (*)(void*, char**, size_t))dlsym(dlopen("libcuda.so.1", RTLD_NOW), "fake_find_multicast");
  char* members[fake::MAX_GPUS];
  size_t count = find(pointer, members, fake::MAX_GPUS);
  return {members, members + count};
}

constexpr int CYCLES_PER_NS = 2;
constexpr size_t PIECE = 64 << 10;  // bytes that are reduced at once

std::map<const void*, std::string>& names() {
  static auto* map = new std::map<const void*, std::string>;
  return *map;
}

using Flag = std::atomic<uint32_t>;

void replace_flag(Flag* flag, uint32_t expected, uint32_t value) {
  fake::Patience patience;
  for (uint32_t seen = expected; !flag->compare_exchange_weak(seen, value); seen = expected) patience.pause();
}

void meet(Flag** pads, size_t rank, size_t world) {
  for (size_t peer = 0; peer < world; peer++)
    if (peer != rank) replace_flag(&pads[peer][rank], 0, 1);
  for (size_t peer = 0; peer < world; peer++)
    if (peer != rank) replace_flag(&pads[rank][peer], 1, 0);
}

struct Sum {
  elements::Type type;

  size_t bytes(size_t count) const { return count * elements::size_of(type); }

  // Sums as torch does: rank 0 first. `to` may be one of the inputs.
  void reduce(char* to, const std::vector<char*>& inputs, size_t count) const {
    alignas(16) char total[PIECE];
    size_t step = PIECE / elements::size_of(type);
    for (size_t begin = 0; begin < count; begin += step) {
      size_t part = std::min(step, count - begin);
      memcpy(total, inputs[0] + bytes(begin), bytes(part));
      for (size_t i = 1; i < inputs.size(); i++)
        elements::combine(total, inputs[i] + bytes(begin), part, type, elements::Reduction::sum);
      memcpy(to + bytes(begin), total, bytes(part));
    }
  }
};

std::vector<char*> shifted(char* const* pointers, size_t world, size_t bytes) {
  std::vector<char*> result;
  for (size_t rank = 0; rank < world; rank++) result.push_back(pointers[rank] + bytes);
  return result;
}

std::vector<char*> shifted(const std::vector<char*>& pointers, size_t bytes) {
  return shifted(pointers.data(), pointers.size(), bytes);
}

template <typename T>
T argument(void** arguments, int index) {
  return *(T*)arguments[index];
}

size_t round_up(size_t count, size_t multiple) { return (count + multiple - 1) / multiple * multiple; }

// The part of `count` elements that is `rank`'s.
struct Part {
  size_t begin, count;
  Part(size_t total, size_t per_rank, size_t rank)
      : begin(std::min(per_rank * rank, total)), count(std::min(per_rank, total - begin)) {}
};

// One launch: the kernel's template arguments and parameters.
struct Launch {
  Sum sum;
  size_t alignment;
  bool scatters, splits_last_dimension;
  void** arguments;

  template <typename T>
  T at(int index) const {
    return argument<T>(arguments, index);
  }
};

fake::Work spin(void** arguments) {
  int64_t ns = argument<int64_t>(arguments, 0) / CYCLES_PER_NS;
  return [ns] { std::this_thread::sleep_for(std::chrono::nanoseconds(ns)); };
}

// (input_ptrs, output, local input or null, offset, count, pads, rank, world)
fake::Work one_shot_all_reduce(const Launch& launch) {
  Sum sum = launch.sum;
  auto inputs = launch.at<char**>(0);
  auto *output = launch.at<char*>(1), *local = launch.at<char*>(2);
  size_t offset = sum.bytes(launch.at<size_t>(3)), count = launch.at<size_t>(4);
  auto pads = launch.at<Flag**>(5);
  size_t rank = launch.at<size_t>(6), world = launch.at<size_t>(7);
  return [=] {
    if (local) memcpy(inputs[rank] + offset, local, sum.bytes(count));
    meet(pads, rank, world);
    sum.reduce(output, shifted(inputs, world, offset), count);
    meet(pads, rank, world);
  };
}

// (input_ptrs, output, offset, count, pads, rank, world, last dimension)
fake::Work two_shot_reduce_scatter(const Launch& launch) {
  Sum sum = launch.sum;
  auto inputs = launch.at<char**>(0);
  auto* output = launch.at<char*>(1);
  size_t offset = sum.bytes(launch.at<size_t>(2)), count = launch.at<size_t>(3);
  auto pads = launch.at<Flag**>(4);
  size_t rank = launch.at<size_t>(5), world = launch.at<size_t>(6);
  return [=] {
    meet(pads, rank, world);
    size_t part = count / world;
    sum.reduce(output, shifted(inputs, world, offset + sum.bytes(part * rank)), part);
    meet(pads, rank, world);
  };
}

// (input_ptrs, offset, count, pads, rank, world): each rank writes its part into all buffers
fake::Work two_shot_all_reduce_inplace(const Launch& launch) {
  Sum sum = launch.sum;
  auto inputs = launch.at<char**>(0);
  size_t offset = sum.bytes(launch.at<size_t>(1)), count = launch.at<size_t>(2);
  auto pads = launch.at<Flag**>(3);
  size_t rank = launch.at<size_t>(4), world = launch.at<size_t>(5);
  Part part(count, round_up(count, launch.alignment * world) / world, rank);
  return [=] {
    meet(pads, rank, world);
    auto buffers = shifted(inputs, world, offset + sum.bytes(part.begin));
    sum.reduce(buffers[rank], buffers, part.count);
    for (char* buffer : buffers)
      if (buffer != buffers[rank]) memcpy(buffer, buffers[rank], sum.bytes(part.count));
    meet(pads, rank, world);
  };
}

// (multicast, count, pads, rank, world)
fake::Work multimem_all_reduce(const Launch& launch) {
  Sum sum = launch.sum;
  auto buffers = multicast_members(launch.at<void*>(0));
  size_t count = launch.at<size_t>(1);
  auto pads = launch.at<Flag**>(2);
  size_t rank = launch.at<size_t>(3), world = launch.at<size_t>(4);
  Part part(count, round_up(count, launch.alignment * world) / world, rank);
  return [=] {
    meet(pads, rank, world);
    auto parts = shifted(buffers, sum.bytes(part.begin));
    sum.reduce(parts[0], parts, part.count);
    for (char* other : parts)
      if (other != parts[0]) memcpy(other, parts[0], sum.bytes(part.count));
    meet(pads, rank, world);
  };
}

// (multicast, output, count, pads, rank, world)
fake::Work multimem_one_shot_all_reduce(const Launch& launch) {
  Sum sum = launch.sum;
  auto buffers = multicast_members(launch.at<void*>(0));
  auto* output = launch.at<char*>(1);
  size_t count = launch.at<size_t>(2);
  auto pads = launch.at<Flag**>(3);
  size_t rank = launch.at<size_t>(4), world = launch.at<size_t>(5);
  return [=] {
    meet(pads, rank, world);
    sum.reduce(output, buffers, count);
    meet(pads, rank, world);
  };
}

// (multicast, output, count, pads, rank, world, root)
fake::Work multimem_one_shot_reduce(const Launch& launch) {
  Sum sum = launch.sum;
  auto buffers = multicast_members(launch.at<void*>(0));
  auto* output = launch.at<char*>(1);
  size_t count = launch.at<size_t>(2);
  auto pads = launch.at<Flag**>(3);
  size_t rank = launch.at<size_t>(4), world = launch.at<size_t>(5), root = launch.at<size_t>(6);
  return [=] {
    meet(pads, rank, world);
    if (rank == root) sum.reduce(output, buffers, count);
    meet(pads, rank, world);
  };
}

// (input, multicast, bytes, pads, rank, world)
fake::Work multimem_all_gather(const Launch& launch) {
  auto* input = launch.at<char*>(0);
  auto buffers = multicast_members(launch.at<void*>(1));
  size_t bytes = launch.at<size_t>(2);
  auto pads = launch.at<Flag**>(3);
  size_t rank = launch.at<size_t>(4), world = launch.at<size_t>(5);
  return [=] {
    meet(pads, rank, world);
    for (char* buffer : buffers) memmove(buffer + bytes * rank, input, bytes);
    meet(pads, rank, world);
  };
}

using Maker = fake::Work (*)(const Launch&);

const std::map<std::string, Maker> MAKERS = {
    {"one_shot_all_reduce_kernel", one_shot_all_reduce},
    {"two_shot_all_reduce_kernel", two_shot_reduce_scatter},  // its all_reduce is launched by nobody here
    {"two_shot_all_reduce_kernel_inplace", two_shot_all_reduce_inplace},
    {"multimem_all_reduce_kernel", multimem_all_reduce},
    {"multimem_one_shot_all_reduce_kernel", multimem_one_shot_all_reduce},
    {"multimem_one_shot_reduce_kernel", multimem_one_shot_reduce},
    {"multimem_all_gather_kernel", multimem_all_gather},
};

std::string demangled(const std::string& mangled) {
  int status = 0;
  char* text = abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, &status);
  std::string result = status ? mangled : text;
  free(text);
  return result;
}

}  // namespace

void add_name(const void* function, const char* mangled) { names()[function] = mangled; }

const char* name_of(const void* function) {
  auto entry = names().find(function);
  return entry == names().end() ? "(of no name)" : entry->second.c_str();
}

fake::Work work_of(const void* function, void** arguments) {
  std::string text = demangled(name_of(function));
  if (text.find("spin_kernel") != std::string::npos) return spin(arguments);
  size_t open = text.find("_kernel"), angle = text.find('<', open);
  size_t begin = text.rfind("::", angle);
  if (open == std::string::npos || angle == std::string::npos || begin == std::string::npos) return {};
  std::string name = text.substr(begin + 2, angle - begin - 2);
  auto maker = MAKERS.find(name);
  if (maker == MAKERS.end()) return {};
  auto parameters = fake::split(text.substr(angle + 1, text.find('>', angle) - angle - 1), ',');
  bool is_bfloat16 = parameters[0].find("BFloat16") != std::string::npos;
  Launch launch{{is_bfloat16 ? elements::Type::bfloat16 : elements::Type::float32},
                parameters.size() > 1 ? strtoul(parameters[1].c_str() + 1, nullptr, 10) : 0,
                parameters.size() > 3 && parameters[3].find("true") != std::string::npos,
                parameters.size() > 4 && parameters[4].find("true") != std::string::npos,
                arguments};
  if (name == "two_shot_all_reduce_kernel" && (!launch.scatters || launch.splits_last_dimension)) return {};
  return maker->second(launch);
}

}  // namespace kernels
