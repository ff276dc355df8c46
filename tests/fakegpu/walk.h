// collbench's Triton kernel (collbench/run/backends/_kernel.py) on the host: it takes the channels of
// the ranks of a launch through their tapes, whose instructions _instructions.py describes.
#pragma once
#include "elements.h"
#include "fake.h"

namespace walk {

class Kernel {
 public:
  // "walk op=sum kind=fp32 wide=fp32 packed=1": what it was specialised for.
  explicit Kernel(const std::string& description);

  bool is_known() const { return known_; }
  const std::string& description() const { return description_; }
  fake::Work work(int channels, int ranks, void** arguments) const;

 private:
  std::string description_;
  bool known_ = false;
  elements::Type kind_ = elements::Type::float32;
  elements::Reduction reduction_ = elements::Reduction::sum;
};

}  // namespace walk
