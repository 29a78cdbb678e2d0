#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/memory/device.hpp"
#include "common/memory/tensor.hpp"
#include "common/messages/carrier.hpp"
#include "common/messages/topology.hpp"
#include "common/program/options.hpp"
#include "common/program/session.hpp"

/// @file
/// The options of lesson 02.

namespace rankwise {

/// Names of the collectives, as `--collective` has them, in the order in which they are measured.
const std::vector<std::string>& collective_names();

/// Which collectives are measured, and how.
struct CollectiveOptions {
  CollectiveOptions();  ///< declares them in the table

  OptionTable table{"02_collectives", "Collectives by hand"};  ///< all options

  std::string collective = "all";                      ///< collective to measure, or all
  std::string algorithm = "all";                       ///< algorithm to measure, or all
  std::int64_t count = 1 << 20;                        ///< elements of each rank's vector
  DType type = DType::f32;                             ///< type of the elements
  int root = 0;                                        ///< rank that broadcasts, or receives the sum of reduce
  int ranks_per_node = 0;                              ///< ranks that count as one node; 0: a node is a machine
  int repeats = 5;                                     ///< timed calls
  bool check_messages = false;                         ///< compare the calls of all ranks
  bool dry_run = false;                                ///< print the formulas only
  DeviceKind device = DeviceKind::cpu;                 ///< device that holds the vectors
  TransportKind transport = TransportKind::automatic;  ///< library that carries messages
  std::string report;                                  ///< file of the report
  std::string trace;                                   ///< file of the trace

  /// The nodes of the job and their ranks.
  Topology topology() const { return topology_of_job(ranks_per_node, device); }
};

/// Refuses invalid options before anything is sent.
/// @throws UserError  for the first of them.
void check_options(const CollectiveOptions& options, const Session& session);

}  // namespace rankwise
