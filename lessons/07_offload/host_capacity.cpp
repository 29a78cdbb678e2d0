#include "lessons/07_offload/host_capacity.hpp"

#include <fstream>
#include <limits>
#include <string>

#include <fmt/format.h>

#include "common/base/error.hpp"
#include "common/base/text.hpp"

namespace rankwise {

std::int64_t available_bytes()
{
  std::ifstream file("/proc/meminfo");
  std::string name, unit;
  for (std::int64_t kibibytes = 0; file >> name >> kibibytes; std::getline(file, unit))
    if (name == "MemAvailable:") return 1024 * kibibytes;
  return std::numeric_limits<std::int64_t>::max();
}

void check_host_capacity(const CategoryBytes& planned, std::int64_t device, int ranks, const std::string& remedy)
{
  const std::int64_t needs = planned.total() + device, has = available_bytes();
  if (needs <= has / ranks) return;
  const std::string with =
      device > 0 ? fmt::format(" and {} for the device, which is the same memory", group_digits(device)) : "";
  throw UserError(
      fmt::format("this run needs {} bytes of host memory per rank{}; for {} rank{} this machine has {}.",
                  group_digits(planned.total()), with, ranks, ranks == 1 ? "" : "s", group_digits(has)),
      planned.table() + "\n" + remedy);
}

}  // namespace rankwise
