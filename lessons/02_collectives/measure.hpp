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
/// One collective made by one algorithm: what it sends, whether it is right, how long it takes.

namespace rankwise {

/// A collective and who makes it.
struct Candidate {
  std::string collective;  ///< "reduce-scatter", "all-gather", "all-reduce", "broadcast", "reduce" or "barrier"
  std::string algorithm;   ///< as for --collectives; or one of this lesson's own, for all-reduce only

  /// "all-reduce ring".
  std::string name() const { return collective + " " + algorithm; }
  /// Its way in a few words, as "round the ring".
  std::string way() const;
  /// Whether this lesson wrote it out: "naive" or "textbook-ring".
  bool written_here() const { return algorithm == "naive" || algorithm == "textbook-ring"; }
  /// What a group is made with.
  Algorithm of_group() const;
  /// Whether its messages go through the group's transport, where they can be recorded.
  bool sends() const { return algorithm != "shared" && algorithm != "library"; }
};

/// The vectors and who adds them.
struct Problem {
  std::int64_t n = 0;       ///< elements
  DType type = DType::f32;  ///< of them
  int root = 0;             ///< of broadcast and reduce
};

/// What was asked for of messages.
struct Ways {
  int ranks_per_node = 0;                              ///< as in GroupSetup
  bool check_messages = false;                         ///< as in GroupSetup
  DeviceKind device = DeviceKind::cpu;                 ///< where the vectors are
  TransportKind transport = TransportKind::automatic;  ///< what carries messages
};

/// What the groups of a run have in common, and what the ranks bring along.
struct Bench {
  /// @param problem         the same on all ranks.
  /// @param communicator    all ranks; outlives this.
  /// @param ways            the same on all ranks.
  Bench(const Problem& problem, const Communicator& communicator, const Ways& ways);

  /// A new group of all ranks for a candidate, and no traffic so far.
  std::unique_ptr<Group> make_group(const Candidate& candidate);

  Problem problem;                 ///< as given
  const Communicator& all;         ///< all ranks
  MemoryLedger ledger;             ///< counts every buffer
  TrafficLedger traffic;           ///< counts what the candidate's group sends
  TimeLedger time;                 ///< where the time goes
  MessageLog log;                  ///< what the candidate's group sends, while it is recorded
  std::unique_ptr<Device> device;  ///< where the vectors that are summed lie
  std::unique_ptr<Stream> stream = device->make_stream();          ///< what adds
  DeviceMemory memory{device.get(), &ledger};                      ///< the device's memory, counted
  DeviceMemory host{&device->host_memory(), &ledger, Tier::host};  ///< where the vectors are made and compared
  Carrier carrier;                                                 ///< what carries the messages
  GroupSetup setup;  ///< of every candidate's group, but for the algorithm
  Buffer own;        ///< (n) this rank's vector, on the host
  Buffer by_rank;    ///< (n) the sum of all, one rank after the other, computed without messages, on the host
  Buffer by_tree;    ///< (n) the same in the order of tree_sum()
};

/// What was found of a candidate; the same on all ranks.
struct Findings {
  Candidate candidate;                    ///< whose
  Algorithm algorithm = Algorithm::ring;  ///< what auto stands for; else the candidate's
  TransferSchedule steps;                 ///< of a vector of N elements, counted in steps; empty if not recorded
  std::vector<Traffic> sent;              ///< by rank
  std::vector<Traffic> formula;           ///< by rank
  std::vector<std::int64_t> scratch;      ///< by rank, in bytes
  std::vector<std::int64_t> scratch_formula;  ///< by rank, in bytes
  std::int64_t wrong = 0;                     ///< elements, on all ranks together
  std::string digest;                         ///< of this rank's result; of all-reduce
  bool same_bits = true;                      ///< whether all ranks end with the same bits; of all-reduce
  Difference from_rank_order;                 ///< of the sum; of all-reduce
  Difference from_tree;                       ///< of the sum; of all-reduce
  double time_s = 0;                          ///< median of the repeats, each that of the slowest rank
  double predicted_s = 0;                     ///< of the messages alone; 0 if not recorded
};

/// Makes the collective.
void make(const Candidate& candidate, const Tensor& values, int root, Group& group);

/// What a rank sends and what scratch it needs, by formula.
Traffic traffic_formula(const Candidate& candidate, Algorithm algorithm, const Problem& problem,
                        const Topology& topology, int rank);
/// As traffic_formula(); in bytes.
std::int64_t scratch_formula(const Candidate& candidate, Algorithm algorithm, const Problem& problem,
                             const Topology& topology, int rank);

/// Makes a candidate's collective several times and looks at it. All ranks make this call.
/// @param line     the time of a message.
/// @param repeats  timed calls, >= 1.
Findings measure(Bench& bench, const Candidate& candidate, const AlphaBeta& line, int repeats);

}  // namespace rankwise
