#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/memory/device.hpp"
#include "common/messages/carrier.hpp"
#include "common/messages/group.hpp"
#include "common/program/time_ledger.hpp"
#include "lessons/02_collectives/options.hpp"
#include "lessons/02_collectives/schedule.hpp"
#include "lessons/02_collectives/vectors.hpp"

/// @file
/// Measurements of one collective by one algorithm: its traffic, its result and its time.

namespace rankwise {

/// A collective and the algorithm that performs it.
struct Candidate {
  std::string collective;  ///< one of collective_names()
  std::string algorithm;   ///< as for --collectives

  /// "all-reduce ring".
  std::string name() const { return collective + " " + algorithm; }
  /// The algorithm in a few words, as "round the ring".
  std::string way() const;
  /// True if the algorithm is written in this lesson: "naive" or "textbook-ring".
  bool written_here() const { return algorithm == "naive" || algorithm == "textbook-ring"; }
  /// True for an all-to-all, which stores what it receives in a second vector.
  bool moves_blocks() const { return collective.starts_with("all-to-all"); }
  /// True if this collective has this algorithm.
  bool exists() const;
  /// Elements of a rank's block for each rank, and of the block from each, in a vector of n elements.
  std::vector<std::int64_t> blocks(std::int64_t n, int ranks, int rank) const;
  /// Algorithm of the group that performs it.
  Algorithm of_group() const;
  /// True if its messages go through the group's transport, where they can be recorded.
  bool sends() const { return algorithm != "shared" && algorithm != "library"; }
};

/// Everything that the measurements of a run share: ranks, vectors, ledgers, device and carrier.
struct Bench {
  /// All ranks make it together.
  /// @param options  as they were checked, the same on all ranks; outlive this.
  explicit Bench(const CollectiveOptions& options);

  /// Makes a group of all ranks for a candidate, and clears the traffic ledger.
  std::unique_ptr<Group> make_group(const Candidate& candidate);
  /// Memory for a vector on the host, (n).
  Buffer vector(const std::string& what) const;

  const CollectiveOptions& options;          ///< as given
  Communicator all = Communicator::world();  ///< all ranks
  Topology topology = options.topology();    ///< nodes and their ranks
  MemoryLedger ledger;                       ///< counts every buffer
  TrafficLedger traffic;                     ///< counts what the candidate's group sends
  TimeLedger time;                           ///< time by kind of work
  MessageLog log;                            ///< messages of the candidate's group, while they are recorded
  std::unique_ptr<Device> device = make_device(options.device);    ///< device that holds the vectors
  std::unique_ptr<Stream> stream = device->make_stream();          ///< stream of the additions
  DeviceMemory memory{device.get(), &ledger};                      ///< device memory, counted in the ledger
  DeviceMemory host{&device->host_memory(), &ledger, Tier::host};  ///< host memory, to make and compare vectors
  Carrier carrier = choose_carrier(options.transport, options.device, false);  ///< carrier of the messages
  Buffer own = vector("own vector");                                           ///< this rank's vector
  Buffer by_rank = vector("sum by rank");  ///< sum over the ranks in their order, computed without messages
  Buffer by_tree = vector("sum by tree");  ///< the same sum in the order of tree_sum()
};

/// Traffic and scratch of one rank in a collective.
struct RankCost {
  Traffic sent;              ///< messages and bytes
  std::int64_t scratch = 0;  ///< bytes for received messages
};

/// Measurements of a candidate; the same on all ranks.
struct Findings {
  Candidate candidate;                    ///< what was measured
  Algorithm algorithm = Algorithm::ring;  ///< the candidate's, or the one that auto chose
  TransferSchedule steps;  ///< messages for a vector of N elements, with times in steps; empty if not recorded
  std::vector<RankCost> measured;  ///< by rank
  std::vector<RankCost> formula;   ///< the same by the formula
  std::int64_t wrong = 0;          ///< number of wrong elements on all ranks together
  std::uint64_t hash = 0;          ///< fast_hash() of this rank's result; all-reduce only
  bool same_bits = true;           ///< whether all ranks end with the same bits; all-reduce only
  Difference from_rank_order;      ///< difference from the sum by rank; all-reduce only
  Difference from_tree;            ///< difference from the sum by tree; all-reduce only
  double time_s = 0;               ///< time of the slowest rank, median of the repeats
  double predicted_s = 0;          ///< time of the messages alone in the model; 0 if not recorded
};

/// Performs the collective once. All ranks make this call.
/// @param values    (n), changed by all but all-to-all.
/// @param received  (n) for the result of all-to-all; the others do not use it.
void make(const Candidate& candidate, const Tensor& values, const Tensor& received, int root, Group& group);

/// Cost of a rank by the formulas; `auto` is resolved.
RankCost cost_of(const Candidate& candidate, const CollectiveOptions& options, const Topology& topology, int rank);

/// Performs a candidate's collective several times and measures it. All ranks make this call.
/// @param line  time of a message.
Findings measure(Bench& bench, const Candidate& candidate, const AlphaBeta& line);

}  // namespace rankwise
