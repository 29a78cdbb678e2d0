#include "common/messages/layers/link_options.hpp"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "common/base/error.hpp"
#include "common/base/text.hpp"
#include "common/program/option_value.hpp"

namespace rankwise {

namespace {

const char* const link_forms =
    "Write --link=LATENCY,BANDWIDTH, as --link=5us,10GB/s; or, with nodes, first the links inside a node, "
    "then those between nodes, then the number of ranks per node: --link=1us,100GB/s,5us,10GB/s,4.\n"
    "Latencies are in s, ms, us or ns. Bandwidths are in bytes (10GB/s = 10^10 bytes per second, 10GiB/s = "
    "10 * 2^30) or in bits (100Gb/s = 12.5GB/s).";

/// Parses a nonnegative number with one of these units. @return  its value in the first unit; negative if invalid.
double read_quantity(const std::string& text, std::initializer_list<std::pair<const char*, double>> units)
{
  for (const auto& [unit, factor] : units)
    if (Quantity quantity{unit}; read_value(text, quantity).empty()) return quantity * factor;
  return -1;
}

Link read_link(const std::string& text, const std::string& latency, const std::string& bandwidth)
{
  const double latency_s = read_quantity(latency, {{"s", 1}});
  if (latency_s < 0 || latency_s > 1000)
    throw UserError(
        fmt::format("--link={}: \"{}\" is not a latency between 0s and 1000s with its unit.", text, latency),
        link_forms);
  const double bytes_per_s = read_quantity(bandwidth, {{"B/s", 1}, {"b/s", 0.125}});
  if (bytes_per_s < 1e3 || bytes_per_s > 1e18)
    throw UserError(
        fmt::format("--link={}: \"{}\" is not a bandwidth from 1kB/s to 10^18B/s with its unit.", text, bandwidth),
        link_forms);
  return {std::llround(latency_s * picoseconds_per_s), bytes_per_s};
}

}  // namespace

Picoseconds later(Picoseconds moment, Picoseconds by)
{
  check(by >= 0, "a virtual clock cannot run backwards");
  if (by <= longest_virtual_time - moment) return moment + by;
  throw UserError("the virtual clock would run for more than eight million seconds.",
                  "Its picoseconds end there. Use a higher --flops or a faster --link, or train for fewer steps.");
}

Picoseconds virtual_time(std::int64_t amount, double per_s)
{
  const double time = static_cast<double>(amount) * static_cast<double>(picoseconds_per_s) / per_s;
  return later(0, std::llround(std::min(time, 9e18)));
}

LinkOptions parse_link(const std::string& text)
{
  const std::vector<std::string> parts = split(text + ',', ',');
  if (parts.size() != 2 && parts.size() != 5)
    throw UserError(fmt::format("--link={} has {} parts instead of 2 or 5.", text, parts.size()), link_forms);
  LinkOptions options;
  options.inside = options.between = read_link(text, parts[0], parts[1]);
  if (parts.size() == 2) return options;
  options.between = read_link(text, parts[2], parts[3]);
  if (!read_value(parts[4], options.ranks_per_node).empty() || options.ranks_per_node < 1)
    throw UserError(fmt::format("--link={}: \"{}\" is not a number of ranks per node.", text, parts[4]),
                    link_forms);
  return options;
}

double parse_flops(const std::string& text, const std::string& option)
{
  const double rate = read_quantity(text, {{"FLOP/s", 1}});
  if (rate < 1e3 || rate > 1e21)
    throw UserError(
        fmt::format("--{}={} is not a rate from 1kFLOP/s to 10^21FLOP/s with its unit.", option, text),
        fmt::format("Write the floating-point operations per second of a rank as --{}=100GFLOP/s, with k, "
                    "M, G, T or P.",
                    option));
  return rate;
}

void check_virtual_clock(Algorithm algorithm)
{
  if (algorithm != Algorithm::shared && algorithm != Algorithm::library && algorithm != Algorithm::automatic)
    return;
  const char* const why =
      algorithm == Algorithm::shared    ? "ranks read each other's memory instead of sending messages"
      : algorithm == Algorithm::library ? "the messages inside the MPI library cannot be observed"
                                        : "auto may choose shared memory, which sends no messages";
  throw UserError(fmt::format("--link cannot be used with --collectives={}: {}.", name_of(algorithm), why),
                  "The virtual clock counts the messages that the collectives of this project send. Use "
                  "--collectives=ring, tree, halving or hierarchical.");
}

}  // namespace rankwise
