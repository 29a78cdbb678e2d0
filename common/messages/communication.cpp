#include "common/messages/communication.hpp"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "common/base/error.hpp"
#include "common/base/json.hpp"
#include "common/messages/rehearsal/rehearsal.hpp"

namespace rankwise {

Algorithm CommunicationOptions::algorithm(Algorithm fallback) const
{
  for (const auto& [name, value] : algorithms())
    if (name == collectives) return value;
  return fallback;
}

void declare(OptionTable& table, CommunicationOptions& o)
{
  const std::string group = "Messages";
  std::vector<std::pair<std::string, std::string>> choices{{"default", "default"}};
  for (const auto& [name, value] : algorithms()) choices.emplace_back(name, name);
  table.add_choice(group, "collectives", o.collectives, choices,
                   "algorithm of collectives; default: ring, or halving with --arithmetic=exact");
  table.add(group, "ranks-per-node", o.ranks_per_node, "ranks that count as one node; 0: a node is a machine");
  table.add(group, "check-messages", o.check_messages, "compare the ranks' calls before each collective");
  table.add(group, "timeout", o.timeout_s,
            "seconds without progress before the watchdog ends the job; 0: no limit");
  table.add(group, "chaos", o.chaos, "seed of random delays and synchronous sends, to expose errors; 0: off");
  table.add(
      group, "link", o.link,
      "virtual clock: LATENCY,BANDWIDTH of messages, as 5us,10GB/s; or both inside a node, both between nodes, and "
      "ranks per node");
  declare_transport(table, group, o.transport);
  table.add(group, "flops", o.flops, "virtual clock: compute rate of a rank, as 100GFLOP/s");
}

void check_options(const CommunicationOptions& options, Algorithm fallback, const Topology& topology)
{
  check_transport(options.transport, topology.device);
  if (options.transport == TransportKind::nccl && !options.link.empty())
    throw UserError(fmt::format("--link={} cannot be combined with --transport=nccl.", options.link),
                    "The virtual clock's times are sent with MPI messages. Use --transport=mpi.");
  if (options.ranks_per_node < 0)
    throw UserError(fmt::format("--ranks-per-node={} is out of range.", options.ranks_per_node),
                    "Use a number of ranks, or 0 to count each machine as a node.");
  check_algorithm(options.algorithm(fallback), topology);
  if (options.timeout_s < 0)
    throw UserError(fmt::format("--timeout={} is out of range.", options.timeout_s),
                    "Use a number of seconds, or 0 to wait without limit.");
  parse_flops(options.flops);
  if (options.link.empty()) return;
  parse_link(options.link);
  check_virtual_clock(options.algorithm(fallback));
}

namespace {

/// A clock, or in a rehearsal one that writes its script.
std::unique_ptr<VirtualClock> make_clock(const LinkOptions& link, double flops_per_s)
{
  if (const Rehearsal* rehearsal = Rehearsal::current())
    return std::make_unique<RehearsedClock>(link, flops_per_s, rehearsal->script);
  return std::make_unique<VirtualClock>(link, flops_per_s);
}

}  // namespace

Communication::Communication(const CommunicationOptions& options, const DeviceMemory& memory, Stream& stream,
                             const TimeLedger& time)
    : options_(options),
      memory_(memory),
      compute_(stream),
      stream_(memory.device->make_stream()),
      carrier_(choose_carrier(options.transport, memory.device->kind(), !options.link.empty()))
{
  flight_recorder().follow(&time);
  if (!options.link.empty()) {
    clock_ = make_clock(parse_link(options.link), parse_flops(options.flops));
    follow_virtual_clock([this] { return clock_->now().since_start; });
  }
}

Communication::~Communication()
{
  flight_recorder().follow(nullptr);
  follow_virtual_clock(nullptr);
}

GroupSetup Communication::setup(Algorithm fallback)
{
  return {.memory = memory_,
          .stream = stream_.get(),
          .traffic = &traffic_,
          .algorithm = options_.algorithm(fallback),
          .ranks_per_node = options_.ranks_per_node,
          .check_messages = options_.check_messages,
          .log = nullptr,
          .recorder = Rehearsal::current() ? nullptr : &flight_recorder(),
          .clock = clock(),
          .chaos = options_.chaos,
          .compute = &compute_,
          .nccl = carrier_.nccl};
}

void Communication::begin_step()
{
  if (clock_) clock_->step();
}

void Communication::end_step()
{
  if (!clock_) return;
  last_step_ = clock_->spans();
  virtual_steps_.push_back(clock_->step());
}

void Communication::report_virtual_clock(Report& report) const
{
  if (virtual_steps_.empty()) return;
  const VirtualStep& last = virtual_steps_.back();
  const double communication = seconds(last.communication),
               hidden = std::max(0.0, communication - seconds(last.exposed));
  const auto line = [](const char* name, double time_s, const std::string& note) {
    return Line{name, fmt::format("{:.4f}", 1e3 * time_s), "", note};
  };
  report.block("virtual clock, last step",
               {line("step", seconds(last.step), "ms = compute + exposed"),
                line("compute", seconds(last.compute), "ms"),
                line("communication", communication, "ms, hidden or not"),
                line("exposed", seconds(last.exposed), "ms that the computation had to wait"),
                {"hidden", fmt::format("{:.1f}", communication > 0 ? 100 * hidden / communication : 0), "",
                 "% of the communication"}});
  constexpr int columns = 100;
  report.comment(timeline(last_step_, columns));
  nlohmann::json& json = report.json()["virtual"];
  for (const VirtualStep& step : virtual_steps_) json.push_back(as_json(step));
}

nlohmann::json as_json(const VirtualStep& step)
{
  return {{"step_ps", step.step},
          {"compute_ps", step.compute},
          {"exposed_ps", step.exposed},
          {"communication_ps", step.communication}};
}

}  // namespace rankwise
