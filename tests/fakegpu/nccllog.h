// NCCL's log, as its variables NCCL_DEBUG, NCCL_DEBUG_SUBSYS and NCCL_DEBUG_FILE ask for it, and
// its version. Of NCCL's fake.
#pragma once
#include <strings.h>
#include <sys/syscall.h>

#include <cstdarg>

#include "fake.h"
#include "ncclranks.h"

namespace nccl {

constexpr const char* DEFAULT_VERSION = "2.30.7";

// The version as NCCL counts it: 2.18.5 is 21805.
inline int version_code() {
  int major = 0, minor = 0, patch = 0;
  sscanf(fake::setting("FAKE_NCCL", DEFAULT_VERSION).c_str(), "%d.%d.%d", &major, &minor, &patch);
  return major * 10000 + minor * 100 + patch;
}

enum Level { SILENT, VERSION, WARN, INFO };

inline std::mutex log_lock;
inline FILE* log_file = nullptr;  // null until the environment was read
inline Level log_level = SILENT;
inline std::string log_subsystems;
inline char last_error[512] = "";

inline std::string host_name() {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  return fake::split(std::string(name) + ".", '.')[0];
}

// NCCL_DEBUG_FILE with its %h and %p.
inline std::string expand_path(const std::string& pattern) {
  std::string path;
  for (size_t i = 0; i < pattern.size(); i++) {
    char next = pattern[i] == '%' && i + 1 < pattern.size() ? pattern[++i] : '\0';
    if (next == 'h') path += host_name();
    else if (next == 'p') path += std::to_string(getpid());
    else if (next && next != '%') path += std::string("%") + next;
    else path += pattern[i];
  }
  return path;
}

inline void open_log() {
  std::string level = fake::setting("NCCL_DEBUG"), path = fake::setting("NCCL_DEBUG_FILE");
  const char* names[] = {"", "VERSION", "WARN", "INFO"};
  log_level = SILENT;
  for (int i = VERSION; i <= INFO; i++)
    if (!strcasecmp(level.c_str(), names[i])) log_level = (Level)i;
  if (!strcasecmp(level.c_str(), "TRACE") || !strcasecmp(level.c_str(), "ABORT")) log_level = INFO;
  log_subsystems = fake::setting("NCCL_DEBUG_SUBSYS", "INIT,BOOTSTRAP,ENV");
  // as NCCL does it, VERSION goes to the terminal whatever file is named
  log_file = path.empty() || log_level <= VERSION ? stdout : fopen(expand_path(path).c_str(), "w");
  if (!log_file) log_file = stdout;
  if (log_file != stdout) setlinebuf(log_file);
}

inline bool logs(Level level) {
  if (!log_file) open_log();
  return level <= log_level;
}

// Whether NCCL_DEBUG_SUBSYS wants a subsystem's lines: a list, of those to leave out after a ^.
inline bool logs_subsystem(const char* subsystem) {
  if (!logs(INFO)) return false;
  bool inverts = log_subsystems[0] == '^', is_listed = false;
  for (const std::string& name : fake::split(log_subsystems.substr(inverts), ','))
    is_listed |= !strcasecmp(name.c_str(), subsystem) || !strcasecmp(name.c_str(), "ALL");
  return is_listed != inverts;
}

inline void write_line(int device, const std::string& text) {
  fprintf(log_file, "%s:%d:%ld [%d] %s\n", host_name().c_str(), getpid(), syscall(SYS_gettid),
          device, text.c_str());
  fflush(log_file);
}

__attribute__((format(printf, 3, 4))) inline Result fail(int device, Result result,
                                                         const char* format, ...) {
  std::lock_guard<std::mutex> guard(log_lock);
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(last_error, sizeof last_error, format, arguments);
  va_end(arguments);
  if (logs(WARN)) write_line(device, std::string("fake/nccl.cpp NCCL WARN ") + last_error);
  return result;
}

inline void log_version(const Communicator& comm) {
  static bool is_shown = false;
  std::lock_guard<std::mutex> guard(log_lock);
  if (comm.rank != 0 || is_shown || !logs(VERSION)) return;
  is_shown = true;
  std::string text = "NCCL version " + fake::setting("FAKE_NCCL", DEFAULT_VERSION) + "+cuda13.0";
  if (log_level == INFO) return write_line(comm.device, "NCCL INFO " + text);
  fprintf(log_file, "%s\n", text.c_str());
  fflush(log_file);
}

// NCCL connects ranks at a communicator's first call.
inline void log_connection(Communicator& comm) {
  if (comm.is_connected.exchange(true) || comm.n == 1) return;
  std::lock_guard<std::mutex> guard(log_lock);
  bool by_host = fake::number("FAKE_NO_P2P", 0);
  if (!logs_subsystem("INIT") && !logs_subsystem(by_host ? "SHM" : "P2P")) return;
  char text[160];
  int next = (comm.rank + 1) % comm.n;
  snprintf(text, sizeof text, "NCCL INFO Channel 00/0 : %d[%d] -> %d[%d] via %s", comm.rank,
           comm.gpu, next, comm.shared->ranks[next].gpu,
           by_host ? "SHM/direct/direct" : "P2P/CUMEM");
  write_line(comm.device, text);
}

// What NCCL chose for a collective, in the words of the version: numbers and a time until 2.23,
// without the collective's name in the first of them.
inline void log_choice(const Communicator& comm, const char* collective, size_t bytes) {
  std::lock_guard<std::mutex> guard(log_lock);
  if (comm.rank != 0 || comm.n == 1 || !logs_subsystem("TUNING")) return;
  int protocol = bytes <= 64 << 10 ? 0 : bytes <= 4 << 20 ? 1 : 2;
  const char* names[] = {"LL", "LL128", "SIMPLE"};
  char text[160];
  if (version_code() >= 22400)
    snprintf(text, sizeof text, "%s: %zu Bytes -> Algo RING proto %s channel{Lo..Hi}={0..1}",
             collective, bytes, names[protocol]);
  else
    snprintf(text, sizeof text, "%s%s%zu Bytes -> Algo 1 proto %d time 9.500000",
             version_code() >= 22200 ? collective : "", version_code() >= 22200 ? ": " : "", bytes,
             protocol);
  write_line(comm.device, std::string("NCCL INFO ") + text);
}

}  // namespace nccl
