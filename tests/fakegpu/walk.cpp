#include "walk.h"

#include <atomic>
#include <chrono>
#include <map>
#include <thread>

namespace walk {
namespace {

using Word = int64_t;
using Progress = std::atomic<Word>;

enum Opcode { STOP, WAIT, MOVE, PUBLISH, DIVIDE };
constexpr Word WIDE = 8, LENGTH_SHIFT = 4;  // of a head
constexpr int ADDRESSES = 5, LINES = 4;     // of a rank's row in the table of addresses
constexpr size_t PIECE = 16 << 10;          // bytes that are combined at once

const std::map<std::string, elements::Type> TYPES = {
    {"int8", elements::Type::int8},     {"uint8", elements::Type::uint8},      {"int16", elements::Type::int16},
    {"int32", elements::Type::int32},   {"uint32", elements::Type::uint32},    {"int64", elements::Type::int64},
    {"uint64", elements::Type::uint64}, {"fp16", elements::Type::half},        {"fp32", elements::Type::float32},
    {"fp64", elements::Type::float64},  {"bf16", elements::Type::bfloat16},    {"fp8e4nv", elements::Type::f8e4m3},
    {"fp8e5", elements::Type::f8e5m2},
};

const std::map<std::string, elements::Reduction> REDUCTIONS = {
    {"none", elements::Reduction::sum}, {"sum", elements::Reduction::sum},   {"avg", elements::Reduction::sum},
    {"prod", elements::Reduction::prod}, {"min", elements::Reduction::min},   {"max", elements::Reduction::max},
    {"band", elements::Reduction::band}, {"bor", elements::Reduction::bor},   {"bxor", elements::Reduction::bxor},
};

// One launch, as its blocks see it; the order of the members is that of the kernel's parameters.
struct Launch {
  Word *tape, *bases;
  int* claim;
  Word* report;
  int first;
  Word patience_us;
  int channels;
  elements::Type kind;
  elements::Reduction reduction;
};

Word now_us() {
  using namespace std::chrono;
  return duration_cast<microseconds>(steady_clock::now().time_since_epoch()).count();
}

// A block: one channel of one rank.
class Block {
 public:
  Block(const Launch& launch, int row, int channel)
      : launch_(launch), rank_(launch.first + row), channel_(channel), past_(channel * launch.tape[0]) {
    at_ = launch.tape + launch.tape[1 + row * launch.channels + channel];
    line_ = (Word*)(launch.bases[rank_ * ADDRESSES + LINES] + past_);
    base_ = *line_;
  }

  void run() {
    bool well = base_ >= 0;
    Word head = *at_;
    while (well && head % WIDE != STOP) {
      well = execute(at_, (Opcode)(head % WIDE), head >> LENGTH_SHIFT);
      at_ += head >> LENGTH_SHIFT;
      head = *at_;
    }
    *line_ = well ? base_ + (head >> LENGTH_SHIFT) : -1;
  }

 private:
  bool execute(Word* instruction, Opcode opcode, Word length) {
    switch (opcode) {
      case WAIT: return wait(instruction + 1, length / 2);
      case MOVE: move(instruction, length / 2 - 2); return true;
      case PUBLISH: publish(instruction, length - 2); return true;
      default: divide(instruction); return true;
    }
  }

  bool wait(const Word* pairs, Word peers) {
    for (Word i = 0; i < peers; i++) {
      Word peer = pairs[2 * i], wanted = pairs[2 * i + 1] + base_;
      auto* word = (Progress*)(line_ + 1 + peer);
      Word began = now_us();
      fake::Patience patience;
      while (word->load() < wanted) {
        if (now_us() - began > launch_.patience_us || __atomic_load_n(launch_.claim, __ATOMIC_RELAXED)) {
          report_wait(peer, pairs[2 * i + 1], word->load() - base_);
          return false;
        }
        patience.pause();
      }
    }
    return true;
  }

  void report_wait(Word peer, Word awaited, Word seen) {
    if (__atomic_exchange_n(launch_.claim, 1, __ATOMIC_RELAXED)) return;
    Word values[] = {rank_, channel_, peer, awaited, seen};
    std::copy(values, values + 5, launch_.report + 1);
    launch_.report[0] = 1;
  }

  void publish(const Word* instruction, Word peers) {
    for (Word i = 0; i < peers; i++) {
      Word lines = launch_.bases[instruction[2 + i] * ADDRESSES + LINES];
      ((Progress*)(lines + past_))[1 + rank_].store(base_ + instruction[1]);
    }
  }

  // The pair (address, bytes past it) at `operand`.
  char* pointer(const Word* operand) const { return (char*)(launch_.bases[operand[0]] + operand[1]); }

  void move(const Word* instruction, Word terms) {
    size_t size = elements::size_of(launch_.kind), bytes = (size_t)instruction[1] * size;
    char* target = pointer(instruction + 2);
    if (terms == 1) {
      memmove(target, pointer(instruction + 4), bytes);
      return;
    }
    char total[PIECE];
    for (size_t begin = 0; begin < bytes; begin += PIECE) {
      size_t part = std::min(PIECE, bytes - begin);
      memcpy(total, pointer(instruction + 4) + begin, part);
      for (Word term = 1; term < terms; term++)
        elements::combine(total, pointer(instruction + 4 + 2 * term) + begin, part / size, launch_.kind,
                          launch_.reduction);
      memcpy(target + begin, total, part);
    }
  }

  void divide(const Word* instruction) {
    elements::scale(pointer(instruction + 2), (size_t)instruction[1], launch_.kind, 1, (double)instruction[4]);
  }

  const Launch& launch_;
  const Word rank_, channel_, past_;
  Word *at_, *line_, base_;
};

}  // namespace

Kernel::Kernel(const std::string& description) : description_(description) {
  auto words = fake::split(description, ' ');
  if (words.empty() || words[0] != "walk") return;
  std::map<std::string, std::string> values;
  for (const std::string& word : words)
    if (size_t equals = word.find('='); equals != std::string::npos)
      values[word.substr(0, equals)] = word.substr(equals + 1);
  auto kind = TYPES.find(values["kind"]);
  auto reduction = REDUCTIONS.find(values["op"]);
  if (kind == TYPES.end() || reduction == REDUCTIONS.end()) return;
  kind_ = kind->second;
  reduction_ = reduction->second;
  known_ = true;
}

fake::Work Kernel::work(int channels, int ranks, void** arguments) const {
  Launch launch{*(Word**)arguments[0], *(Word**)arguments[1], *(int**)arguments[2], *(Word**)arguments[3],
                *(int*)arguments[4],   *(int*)arguments[5],   channels,             kind_, reduction_};
  return [launch, channels, ranks] {
    std::vector<std::thread> blocks;
    for (int row = 0; row < ranks; row++)
      for (int channel = 0; channel < channels; channel++)
        blocks.emplace_back([&launch, row, channel] { Block(launch, row, channel).run(); });
    for (std::thread& block : blocks) block.join();
  };
}

}  // namespace walk
