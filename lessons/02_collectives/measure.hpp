#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/memory/device.hpp"
#include "common/messages/carrier.hpp"
#include "common/messages/group.hpp"
#include "common/program/time_ledger.hpp"
#include "lessons/02_collectives/schedule.hpp"
#include "lessons/02_collectives/vectors.hpp"

/// @file
/// Measurements of one collective by one algorithm: its traffic, its result and its time.

namespace rankwise {

/// A collective and the algorithm that performs it.
struct Candidate {
  std::string collective;  ///< "reduce-scatter", "all-gather", "all-reduce", "broadcast", "reduce" or "barrier"
  std::string algorithm;   ///< as for --collectives; or one written in this lesson, for all-reduce only

  /// "all-reduce ring".
  std::string name() const { return collective + " " + algorithm; }
  /// The algorithm in a few words, as "round the ring".
  std::string way() const;
  /// Whether the algorithm is written in this lesson: "naive" or "textbook-ring".
  bool written_here() const { return algorithm == "naive" || algorithm == "textbook-ring"; }
  /// Algorithm of the group that performs it.
  Algorithm of_group() const;
  /// Whether its messages go through the group's transport, where they can be recorded.
  bool sends() const { return algorithm != "shared" && algorithm != "library"; }
};

/// The vectors on which the collectives work.
struct Problem {
  std::int64_t n = 0;       ///< elements
  DType type = DType::f32;  ///< of the elements
  int root = 0;             ///< root of broadcast and reduce
};

/// Options of the messages.
struct Ways {
  int ranks_per_node = 0;                              ///< as in GroupSetup
  bool check_messages = false;                         ///< as in GroupSetup
  DeviceKind device = DeviceKind::cpu;                 ///< device that holds the vectors
  TransportKind transport = TransportKind::automatic;  ///< carrier of the messages
};

/// Everything that the measurements of a run share: vectors, ledgers, device and carrier.
struct Bench {
  /// @param problem         the same on all ranks.
  /// @param communicator    all ranks; outlives this.
  /// @param ways            the same on all ranks.
  Bench(const Problem& problem, const Communicator& communicator, const Ways& ways);

  /// Makes a group of all ranks for a candidate, and clears the traffic ledger.
  std::unique_ptr<Group> make_group(const Candidate& candidate);

  Problem problem;                 ///< as given
  const Communicator& all;         ///< all ranks
  MemoryLedger ledger;             ///< counts every buffer
  TrafficLedger traffic;           ///< counts what the candidate's group sends
  TimeLedger time;                 ///< time by kind of work
  MessageLog log;                  ///< messages of the candidate's group, while they are recorded
  std::unique_ptr<Device> device;  ///< device that holds the vectors
  std::unique_ptr<Stream> stream = device->make_stream();          ///< stream of the additions
  DeviceMemory memory{device.get(), &ledger};                      ///< device memory, counted in the ledger
  DeviceMemory host{&device->host_memory(), &ledger, Tier::host};  ///< host memory, to make and compare vectors
  Carrier carrier;                                                 ///< carrier of the messages
  GroupSetup setup;  ///< setup of every candidate's group, except the algorithm
  Buffer own;        ///< (n) this rank's vector, on the host
  Buffer by_rank;    ///< (n) sum over the ranks in their order, computed on the host without messages
  Buffer by_tree;    ///< (n) the same sum in the order of tree_sum()
};

/// Measurements of a candidate; the same on all ranks.
struct Findings {
  Candidate candidate;                    ///< what was measured
  Algorithm algorithm = Algorithm::ring;  ///< the candidate's, or the one that auto chose
  TransferSchedule steps;     ///< messages for a vector of N elements, with times in steps; empty if not recorded
  std::vector<Traffic> sent;  ///< measured traffic by rank
  std::vector<Traffic> formula;               ///< traffic by the formula, by rank
  std::vector<std::int64_t> scratch;          ///< bytes of scratch by rank
  std::vector<std::int64_t> scratch_formula;  ///< bytes of scratch by the formula, by rank
  std::int64_t wrong = 0;                     ///< number of wrong elements on all ranks together
  std::string digest;                         ///< SHA-256 of this rank's result; all-reduce only
  bool same_bits = true;                      ///< whether all ranks end with the same bits; all-reduce only
  Difference from_rank_order;                 ///< difference from the sum by rank; all-reduce only
  Difference from_tree;                       ///< difference from the sum by tree; all-reduce only
  double time_s = 0;                          ///< time of the slowest rank, median of the repeats
  double predicted_s = 0;                     ///< time of the messages alone in the model; 0 if not recorded
};

/// Performs the collective once. All ranks make this call.
void make(const Candidate& candidate, const Tensor& values, int root, Group& group);

/// Traffic of a rank by the formula.
Traffic traffic_formula(const Candidate& candidate, Algorithm algorithm, const Problem& problem,
                        const Topology& topology, int rank);
/// Bytes of scratch of a rank by the formula.
std::int64_t scratch_formula(const Candidate& candidate, Algorithm algorithm, const Problem& problem,
                             const Topology& topology, int rank);

/// Performs a candidate's collective several times and measures it. All ranks make this call.
/// @param line     time of a message.
/// @param repeats  number of timed calls, >= 1.
Findings measure(Bench& bench, const Candidate& candidate, const AlphaBeta& line, int repeats);

}  // namespace rankwise
