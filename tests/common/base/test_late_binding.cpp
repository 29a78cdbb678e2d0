#include <dlfcn.h>

#include "common/base/error.hpp"
#include "common/base/late_binding.hpp"
#include "tests/catch.hpp"

using namespace rankwise;

extern "C" int late_answer();  // in late_library.cpp

constexpr const char* library = LATE_LIBRARY;

TEST_CASE("late binding: a library is loaded at the first call of a function")
{
  CHECK(dlopen(library, RTLD_LAZY | RTLD_NOLOAD) == nullptr);
  for (int call = 0; call < 2; ++call) CHECK(RANKWISE_LATE(library, late_answer)() == 42);
  CHECK(dlopen(library, RTLD_LAZY | RTLD_NOLOAD) != nullptr);
}

TEST_CASE("late binding: a library or a function that is not there is named")
{
  CHECK_THROWS_WITH(late_address("libnone.so.1", "none"), Contains("libnone.so.1"));
  CHECK_THROWS_WITH(late_address(library, "no_such_function"), Contains("no_such_function"));
}
