#include "common/program/placement.hpp"

#include <algorithm>
#include <array>
#include <bitset>
#include <map>
#include <mutex>
#include <omp.h>
#include <sched.h>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>

#include "common/base/error.hpp"
#include "common/base/json.hpp"
#include "common/base/text.hpp"
#include "common/cuda/devices.hpp"
#include "common/memory/host_memory.hpp"
#include "common/program/session.hpp"

namespace rankwise {

namespace {

/// Number of ranks of this machine on this rank's GPU.
int ranks_on(const GpuFacts& gpu)
{
  return std::max(1, (ranks_on_machine() - gpu.number + gpu.count - 1) / gpu.count);
}

}  // namespace

void declare_device(OptionTable& table, DeviceKind& device)
{
  table.add_choice<DeviceKind>("Execution", "device", device,
                               {{"cpu", DeviceKind::cpu}, {"cuda", DeviceKind::cuda}},
                               "device to compute on; cuda: rank r of a machine with d GPUs has GPU r mod d");
}

std::int64_t capacity_of(DeviceKind device)
{
  if (device != DeviceKind::cuda) return memory_for_each(ranks_on_machine()).bytes;
  const GpuFacts gpu = gpu_facts();
  return gpu.free_bytes / ranks_on(gpu);
}

void check_device_capacity(const CategoryBytes& planned, DeviceKind device, const std::string& remedy)
{
  const std::int64_t capacity = capacity_of(device);
  if (planned.total() <= capacity) return;
  if (device != DeviceKind::cuda) {
    const int ranks = ranks_on_machine();
    throw UserError(fmt::format("this run needs {} bytes a rank; {}.", group_digits(planned.total()),
                                text_of(memory_for_each(ranks), ranks)),
                    planned.table() + "\n" + remedy);
  }
  const GpuFacts gpu = gpu_facts();
  const int sharing = ranks_on(gpu);
  const std::string who = sharing > 1 ? fmt::format("each of the {} ranks on it has", sharing) : "there are";
  throw UserError(fmt::format("this run needs {} bytes a rank, more than GPU {} ({}) provides: {} {} bytes.",
                              group_digits(planned.total()), gpu.number, gpu.name, who, group_digits(capacity)),
                  planned.table() + "\n" + remedy);
}

namespace {

/// Host and GPU of a rank, as sent in a message.
struct Place {
  std::array<char, 64> host{}, gpu{};
  std::int64_t memory_bytes = 0;
  int number = 0;
};

template <std::size_t size>
void write(std::array<char, size>& to, const std::string& text)
{
  text.copy(to.data(), size - 1);
}

Place own_place()
{
  Place own;
  write(own.host, host_name());
  const GpuFacts gpu = gpu_facts();
  write(own.gpu, gpu.name);
  own.memory_bytes = gpu.memory_bytes;
  own.number = gpu.number;
  return own;
}

/// The cores of a rank, as sent in a message.
struct Cores {
  std::bitset<1024> bound_to;  // cores on which a thread of the rank may run
  int threads = 0, all = 0;    // all: cores on which the rank's launcher may run
};

Cores own_cores()
{
  Cores own;
#ifdef __linux__
  cpu_set_t launchers{};
  if (sched_getaffinity(getppid(), sizeof launchers, &launchers) == 0) own.all = CPU_COUNT(&launchers);
  std::mutex adding;
#pragma omp parallel
  {
    const std::lock_guard lock(adding);
    cpu_set_t threads{};
    if (sched_getaffinity(0, sizeof threads, &threads) == 0)
      for (std::size_t core = 0; core < own.bound_to.size(); ++core)
        if (CPU_ISSET(core, &threads)) own.bound_to.set(core);
    ++own.threads;
  }
#endif
  return own;
}

/// Reports machines whose ranks are bound to fewer cores than they have threads: OpenMP binds the threads of a rank as if there
/// were no other rank.
void report_cores(Report& report)
{
  const std::vector<Cores> ranks = gather_all(own_cores(), job_ranks(), "asking for the cores of all ranks");
  std::map<int, Cores> machines;  // by their lowest rank
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    Cores& of_machine = machines[machine_of_ranks()[r]];
    of_machine.threads += ranks[r].threads;
    of_machine.all = std::max(of_machine.all, ranks[r].all);
    of_machine.bound_to |= ranks[r].bound_to;
  }
  for (const auto& [rank, cores] : machines) {
    const auto used = static_cast<int>(cores.bound_to.count());
    if (used >= std::min(cores.threads, cores.all)) continue;
    report.comment(fmt::format(
        "the {} threads of the ranks on the machine of rank {} are bound to {} of its {} cores and wait for "
        "each other:\ngive each rank as many cores as it has threads, and unset OMP_PROC_BIND, OMP_PLACES and "
        "GOMP_CPU_AFFINITY.",
        cores.threads, rank, used, cores.all));
  }
}

}  // namespace

void start_threads(int threads)
{
  omp_set_dynamic(0);
  omp_set_num_threads(threads);
  int started = 0;
#pragma omp parallel reduction(+ : started)
  ++started;
  if (started < threads)
    throw UserError(fmt::format("--threads={}, of which only {} start.", threads, started),
                    "Unset OMP_THREAD_LIMIT and OMP_MAX_ACTIVE_LEVELS, or use as many threads as they allow.");
}

void report_placement(Report& report, DeviceKind device)
{
  report_cores(report);
  if (device != DeviceKind::cuda) return;
  const std::vector<Place> places = gather_all(own_place(), job_ranks(), "asking where all ranks compute");
  std::string table = fmt::format("{:>4}  {:<20}  {:>3}  {:<24}  {:>16}", "rank", "host", "GPU", "name", "bytes");
  nlohmann::json& json = report.json()["placement"];
  for (std::size_t r = 0; r < places.size(); ++r) {
    const Place& place = places[r];
    table += fmt::format("\n{:>4}  {:<20}  {:>3}  {:<24}  {:>16}", r, place.host.data(), place.number,
                         place.gpu.data(), group_digits(place.memory_bytes));
    json.push_back({{"rank", r}, {"host", place.host.data()}, {"gpu", place.number}, {"name", place.gpu.data()}});
  }
  report.comment(table);
}

void report_gpu_memory(Report& report, const MemoryLedger& ledger, DeviceKind device)
{
  if (device != DeviceKind::cuda) return;
  const GpuFacts gpu = gpu_facts();
  const std::int64_t used = gpu.memory_bytes - gpu.free_bytes, counted = ledger.current(Tier::device).total();
  report.block("GPU memory", {{"counted here", group_digits(counted), "", "bytes in the ledger of rank 0"},
                              {"in use", group_digits(used), "", "bytes on the GPU, by all processes"}});
  report.json()["gpu_memory"] = {{"counted", counted}, {"in_use", used}};
}

}  // namespace rankwise
