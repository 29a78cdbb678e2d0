#include "common/base/late_binding.hpp"

#include <dlfcn.h>

#include <fmt/format.h>

#include "common/base/error.hpp"

namespace rankwise {

void* late_address(const std::string& library, const char* function)
{
  if (void* const address = dlsym(RTLD_DEFAULT, function)) return address;
  // Global, so that the next function is found above.
  if (dlopen(library.c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr)
    throw Error(fmt::format("a library cannot be loaded: {}", dlerror()));
  void* const address = dlsym(RTLD_DEFAULT, function);
  check(address != nullptr, fmt::format("{} has no function {}", library, function));
  return address;
}

}  // namespace rankwise
