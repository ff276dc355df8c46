// Kernels that are compiled into torch and that the fake runs on the host: by their names.
#pragma once
#include "fake.h"

namespace kernels {

void add_name(const void* function, const char* mangled);
const char* name_of(const void* function);
// What a launch of the kernel does; empty where there is no host code for it.
fake::Work work_of(const void* function, void** arguments);

}  // namespace kernels
