#include "lessons/17_choose_a_layout/machine.hpp"

#include <array>
#include <filesystem>
#include <fstream>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/error.hpp"
#include "common/base/text.hpp"
#include "common/program/options.hpp"

namespace rankwise {

namespace {

/// One value of a machine's data sheet.
struct Fact {
  const char* name;
  Quantity Machine::*value;
};
constexpr std::array facts{
    Fact{"memory", &Machine::memory},           Fact{"half", &Machine::half},
    Fact{"single", &Machine::single},           Fact{"memory-rate", &Machine::memory_rate},
    Fact{"network", &Machine::network},         Fact{"network-latency", &Machine::network_latency},
    Fact{"host-memory", &Machine::host_memory}, Fact{"host-memory-rate", &Machine::host_memory_rate},
    Fact{"host-rate", &Machine::host_rate},     Fact{"disk-rate", &Machine::disk_rate}};

/// The line of a file that sets this name, as ", line 3"; nothing of a pipe, which has been read.
std::string line_of(const std::string& path, const std::string& name)
{
  if (!std::filesystem::is_regular_file(path)) return "";
  std::ifstream file(path);
  int number = 1;
  for (std::string line; std::getline(file, line) && trimmed(line.substr(0, line.find('='))) != name;) ++number;
  return fmt::format(", line {}", number);
}

/// Refuses values that no machine has.
void check_machine(const Machine& machine, const std::string& path)
{
  const auto refuse = [&](const std::string& name, double value, const std::string& expected) {
    throw UserError(fmt::format("{} = {} in {}{}, is not {}.", name, value, path, line_of(path, name), expected),
                    "Correct the machine file.");
  };
  if (machine.gpus_per_node < 1) refuse("gpus-per-node", machine.gpus_per_node, "a number of GPUs");
  for (const Fact& fact : facts)
    if (machine.*fact.value <= 0) refuse(fact.name, machine.*fact.value, "more than 0");
  for (const ConstantKind& kind : constant_kinds())
    if (const double value = machine.constants.*kind.constant, rounding = 1e-9;
        value < kind.least * (1 - rounding) || value > kind.most * (1 + rounding))
      refuse(kind.name, value, fmt::format("from {:.4g} to {:.4g}", kind.least, kind.most));
}

}  // namespace

const std::vector<ConstantKind>& constant_kinds()
{
  using C = TimeConstants;
  static const std::vector<ConstantKind> kinds{
      {"product-share", &C::product_share, 0.2, 0.95, 0.05, false},
      {"inner-length", &C::inner_length, 10, 1000, 0.5, false},
      {"memory-share", &C::memory_share, 0.3, 1, 0.10, false},
      {"node-rate", &C::node_rate, 1e9, 1e12, 0.2, false},
      {"meeting", &C::meeting, 1e-6, 600e-6, 0.7, false},
      {"network-share", &C::network_share, 0.1, 1, 0.2, false},
      {"host", &C::host, 1e-5, 3e-3, 0.5, false},
      {"hidden-sums", &C::hidden_sums, 0, 1, 0.3, true},
      {"gather-share", &C::gather_share, 0.02, 0.8, 0.3, false},
      {"gather", &C::gather, 1e-4, 0.2, 0.7, false},
      {"hidden-gathers", &C::hidden_gathers, 0, 1, 0.3, true},
      {"slow-node-rate", &C::slow_node_rate, 1e9, 1e12, 0.5, false},
  };
  return kinds;
}

Machine read_machine(const std::string& path)
{
  Machine machine;
  OptionTable table("machine", "what a machine file says");
  table.add("Machine", "name", machine.name, "what it is called");
  table.add_choice("Machine", "device", machine.device, {{"cpu", DeviceKind::cpu}, {"cuda", DeviceKind::cuda}}, "");
  table.add("Machine", "gpus-per-node", machine.gpus_per_node, "GPUs of a node");
  std::vector<std::string> names{"name", "device", "gpus-per-node"};
  for (const Fact& fact : facts) table.add("Machine", names.emplace_back(fact.name), machine.*fact.value, "");
  for (const ConstantKind& kind : constant_kinds())
    table.add("Constants", names.emplace_back(kind.name), machine.constants.*kind.constant, "");

  table.read_file(path, "--machine=" + path);
  if (machine.name.empty())
    throw UserError(fmt::format("name is empty in {}.", path), "Say what the machine is called.");
  std::erase_if(names, [&](const std::string& name) { return table.given(name); });
  if (!names.empty())
    throw UserError(fmt::format("{} does not say {}.", path, fmt::join(names, ", ")),
                    "Add a line name = value for each; lessons/17_choose_a_layout/machines has examples.");
  check_machine(machine, path);
  return machine;
}

}  // namespace rankwise
