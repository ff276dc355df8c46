// What the fake's libraries share: its GPUs, its settings, and how work gets onto a stream.
//
// Every setting is an environment variable that begins with FAKE_; README.md lists them. A setting of
// a GPU is written "GPU:VALUE[,GPU:VALUE...]" with the number that nvidia-smi would show, or "VALUE"
// for all of them.
#pragma once
#include <dlfcn.h>
#include <sched.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

namespace fake {

constexpr int MAX_GPUS = 64;
constexpr int SM_COUNT = 16;  // an H100 has 132: a block is a thread here, and cores are few
constexpr unsigned DEFAULT_SM_MHZ = 1980;
constexpr const char* GPU_NAME = "Fake H100 80GB";  // collbench knows the fake by the first word

using Work = std::function<void()>;

inline std::string setting(const char* name, const char* otherwise = "") {
  const char* value = getenv(name);
  return value ? value : otherwise;
}

inline long long number(const char* name, long long otherwise) {
  const char* value = getenv(name);
  return value && *value ? strtoll(value, nullptr, 0) : otherwise;
}

inline std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

// The value of a setting for one GPU: of "1:0x40" for GPU 1 "0x40", for others none.
inline std::optional<std::string> setting_of_gpu(const char* name, int gpu) {
  for (const std::string& part : split(setting(name), ',')) {
    size_t colon = part.find(':');
    if (colon == std::string::npos) return part;
    if (atoi(part.c_str()) == gpu) return part.substr(colon + 1);
  }
  return std::nullopt;
}

inline long long number_of_gpu(const char* name, int gpu, long long otherwise) {
  auto value = setting_of_gpu(name, gpu);
  return value ? strtoll(value->c_str(), nullptr, 0) : otherwise;
}

inline int physical_gpus() { return (int)number("FAKE_GPUS", 2); }

inline std::string uuid(int gpu) {
  char text[64];
  snprintf(text, sizeof text, "GPU-10111213-1415-1617-1819-1a1b1c1d1e%02x", gpu);
  return text;
}

inline std::string mig_uuid(int gpu) {
  char text[64];
  snprintf(text, sizeof text, "MIG-20212223-2425-2627-2829-2a2b2c2d2e%02x", gpu);
  return text;
}

inline int bus_number(int gpu) { return 0x1b + gpu; }

// The GPUs that CUDA_VISIBLE_DEVICES leaves, by their physical numbers, in its order. As CUDA does
// it: the list ends at the first entry that names no GPU; UUIDs may be shortened.
inline const std::vector<int>& visible_gpus() {
  static const std::vector<int> visible = [] {
    std::vector<int> gpus;
    const char* list = getenv("CUDA_VISIBLE_DEVICES");
    if (!list) {
      for (int gpu = 0; gpu < physical_gpus(); gpu++) gpus.push_back(gpu);
      return gpus;
    }
    for (const std::string& entry : split(list, ',')) {
      int match = -1;
      for (int gpu = 0; gpu < physical_gpus(); gpu++) {
        bool by_number = !entry.empty() && isdigit(entry[0]) && atoi(entry.c_str()) == gpu;
        bool by_uuid = entry.size() > 4 && (uuid(gpu).rfind(entry, 0) == 0 || mig_uuid(gpu).rfind(entry, 0) == 0);
        if (by_number || by_uuid) match = gpu;
      }
      if (match < 0) break;
      gpus.push_back(match);
    }
    return gpus;
  }();
  return visible;
}

inline size_t memory_of_gpu() { return (size_t)number("FAKE_MIB", 16384) << 20; }

inline int cuda_of_driver() { return (int)number("FAKE_DRIVER_CUDA", 13000); }

// GPUs that are gone are known to all processes by a file in FAKE_STATE.
inline std::string lost_marker(int gpu) {
  std::string folder = setting("FAKE_STATE");
  return folder.empty() ? "" : folder + "/lost-" + std::to_string(gpu);
}

inline bool is_lost(int gpu) {
  std::string marker = lost_marker(gpu);
  return !marker.empty() && access(marker.c_str(), F_OK) == 0;
}

// Waits between two looks at what another rank writes: cores are fewer than ranks.
class Patience {
 public:
  void pause() {
    if (++looks_ < 100)
      sched_yield();
    else
      usleep(50);
  }

 private:
  int looks_ = 0;
};

}  // namespace fake

// Of libcudart: run `work` (a fake::Work*, copied) when the stream's earlier work is done, or add it
// to the graph that the stream is capturing. Returns CUDA's error where the stream's GPU is lost.
extern "C" int fake_enqueue(void* stream, const void* work);
// Whether the stream is capturing a graph.
extern "C" bool fake_is_capturing(void* stream);
// The physical number of the calling thread's current device.
extern "C" int fake_current_gpu();
