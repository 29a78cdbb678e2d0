#include "common/memory/host_memory.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <vector>

#include <fmt/format.h>
#include <sys/resource.h>

#include "common/base/text.hpp"

namespace rankwise {

namespace {

/// The number after a word that begins a line of a file; nothing without one.
std::optional<std::int64_t> number_in(const std::string& path, const std::string& word = "")
{
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::int64_t number = 0;
    if (line.starts_with(word) && std::istringstream(line.substr(word.size())) >> number) return number;
  }
  return std::nullopt;
}

/// Names of the files of a control group.
struct GroupFiles {
  const char *root, *limit, *usage, *pages;  // pages: what names in memory.stat begin with
};
constexpr GroupFiles version_1{"/sys/fs/cgroup/memory", "/memory.limit_in_bytes", "/memory.usage_in_bytes",
                               "total_"};
constexpr GroupFiles version_2{"/sys/fs/cgroup", "/memory.max", "/memory.current", ""};

/// Adds what a control group and those above it leave. A container may see no more of them than the root, which is its own.
void add_groups(std::vector<MemoryLimit>& limits, const GroupFiles& files, const std::string& group)
{
  const std::string root = files.root;
  for (std::string folder = group == "/" ? root : root + group; folder.starts_with(root);
       folder = std::filesystem::path(folder).parent_path().string()) {
    const auto limit = number_in(folder + files.limit), used = number_in(folder + files.usage);
    if (!limit || !used) continue;
    std::int64_t left = *limit - *used;
    for (const char* pages : {"inactive_file", "active_file"})
      left += number_in(folder + "/memory.stat", std::string(files.pages) + pages).value_or(0);
    limits.push_back({"the control group " + folder, std::clamp<std::int64_t>(left, 0, *limit)});
  }
}

std::vector<MemoryLimit> find_limits()
{
  constexpr std::int64_t largest = std::numeric_limits<std::int64_t>::max();
  std::vector<MemoryLimit> limits{{"this machine", largest}};
  if (const auto kibibytes = number_in("/proc/meminfo", "MemAvailable:")) limits[0].bytes = 1024 * *kibibytes;
  std::ifstream groups("/proc/self/cgroup");
  for (std::string number, controllers, group; std::getline(groups, number, ':') &&
                                               std::getline(groups, controllers, ':') &&
                                               std::getline(groups, group);) {
    if (controllers.empty()) add_groups(limits, version_2, group);
    if (("," + controllers + ",").find(",memory,") != std::string::npos) add_groups(limits, version_1, group);
  }
  const auto add_own = [&](const char* name, auto resource, const char* used) {
    struct rlimit limit {};
    if (getrlimit(resource, &limit) != 0 || limit.rlim_cur >= static_cast<rlim_t>(largest)) return;
    const std::int64_t used_bytes = 1024 * number_in("/proc/self/status", used).value_or(0);
    limits.push_back(
        {name, std::max<std::int64_t>(static_cast<std::int64_t>(limit.rlim_cur) - used_bytes, 0), false});
  };
  add_own("ulimit -v", RLIMIT_AS, "VmSize:");
  add_own("ulimit -d", RLIMIT_DATA, "VmData:");
  return limits;
}

}  // namespace

MemoryLimit memory_for_each(int ranks)
{
  constexpr std::int64_t beside_bytes = 64 << 20;  // memory outside the ledgers: buffers of MPI and HDF5, tokens
  static const std::vector<MemoryLimit> limits = find_limits();
  const auto of_one = [&](const MemoryLimit& limit) { return limit.shared ? limit.bytes / ranks : limit.bytes; };
  MemoryLimit least = *std::ranges::min_element(limits, {}, of_one);
  least.bytes = of_one(least);
  least.bytes -= std::min(beside_bytes, least.bytes / 8);
  return least;
}

std::string text_of(const MemoryLimit& limit, int ranks)
{
  return fmt::format("{} leaves {} bytes to {}", limit.of, group_digits(limit.bytes),
                     ranks == 1 ? "one rank" : fmt::format("each of {} ranks", ranks));
}

}  // namespace rankwise
