#pragma once

#include <cstdint>
#include <string>

#include "common/messages/algorithm.hpp"

/// @file
/// `--link` and `--flops`: the links and processors of a virtual machine.

namespace rankwise {

/// Virtual time in picoseconds; 2^63 of them are 106 days.
using Picoseconds = std::int64_t;

/// Picoseconds per second.
inline constexpr Picoseconds picoseconds_per_s = 1'000'000'000'000;

/// The last moment of a virtual clock: eight million seconds.
inline constexpr Picoseconds longest_virtual_time = 8'000'000 * picoseconds_per_s;

/// The moment @p by after @p moment, neither of them negative.
/// @throws UserError  beyond longest_virtual_time.
Picoseconds later(Picoseconds moment, Picoseconds by);

/// The time of @p amount bytes or operations at a rate @p per_s, to the nearest picosecond.
/// @throws UserError  beyond longest_virtual_time.
Picoseconds virtual_time(std::int64_t amount, double per_s);

/// Conversion to seconds.
constexpr double seconds(Picoseconds time)
{
  return static_cast<double>(time) / static_cast<double>(picoseconds_per_s);
}

/// A link from one rank to another. A message of b bytes takes latency + b / bandwidth, and occupies the link for
/// b / bandwidth.
struct Link {
  Picoseconds latency = 0;     ///< alpha, >= 0
  double bandwidth_Bps = 1e9;  ///< 1 / beta, > 0

  /// Time for which a message of @p bytes occupies the link, to the nearest picosecond.
  Picoseconds occupied(std::int64_t bytes) const { return virtual_time(bytes, bandwidth_Bps); }
};

/// The links of a job.
struct LinkOptions {
  Link inside;             ///< between ranks of the same node
  Link between;            ///< between ranks of different nodes
  int ranks_per_node = 0;  ///< successive ranks of the job on a node; 0: all are on one node

  /// The link between two ranks of the job.
  const Link& of(int rank, int peer) const
  {
    return ranks_per_node == 0 || rank / ranks_per_node == peer / ranks_per_node ? inside : between;
  }
};

/// Reads `--link=LATENCY,BANDWIDTH`, or `--link=LATENCY,BANDWIDTH,LATENCY,BANDWIDTH,RANKS-PER-NODE` (inside a
/// node, then between nodes): 5us,10GB/s. Latencies are in s, ms, us or ns; bandwidths in bytes (B/s) or bits
/// (b/s), with k, M, G, T for powers of 1000 and Ki, Mi, Gi, Ti for powers of 1024.
/// @throws UserError  for anything else, with the wrong field and its expected form.
LinkOptions parse_link(const std::string& text);

/// Reads `--flops=RATE`, as 100GFLOP/s: floating-point operations per second, with k, M, G, T, P.
/// @param option      name of the option with this rate.
/// @throws UserError  for anything else.
double parse_flops(const std::string& text, const std::string& option = "flops");

/// Rejects a virtual clock for algorithms that do not send their messages through a transport.
/// @throws UserError  for shared, library, and auto, which may choose shared.
void check_virtual_clock(Algorithm algorithm);

}  // namespace rankwise
