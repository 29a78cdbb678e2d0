#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/memory/device.hpp"
#include "common/messages/algorithm.hpp"
#include "common/messages/communicator.hpp"
#include "common/messages/layers/chaos_transport.hpp"
#include "common/messages/layers/recording_transport.hpp"
#include "common/messages/layers/traffic_ledger.hpp"
#include "common/messages/layers/virtual_clock.hpp"
#include "common/messages/nccl_transport.hpp"
#include "common/messages/shared_memory.hpp"
#include "common/messages/topology.hpp"
#include "common/messages/transport.hpp"
#include "common/messages/watchdog/flight_recorder.hpp"

/// @file
/// A group of ranks that make collectives together.

namespace rankwise {

/// What all groups of a run have in common.
struct GroupSetup {
  DeviceMemory memory;                    ///< where their message buffers lie
  Stream* stream;                         ///< of the same device: adds up what arrives, and orders the messages
  TrafficLedger* traffic;                 ///< counts what is sent
  Algorithm algorithm = Algorithm::ring;  ///< of their collectives
  int ranks_per_node = 0;                 ///< 0 for machines as they are; else so many ranks count as a node
  bool check_messages = false;            ///< compare what the ranks call, each time
  MessageLog* log = nullptr;              ///< records messages, if there is one; outlives the groups
  FlightRecorder* recorder =
      &flight_recorder();         ///< knows what is under way, for the watchdog; outlives the groups
  VirtualClock* clock = nullptr;  ///< what messages take is counted on it, if there is one; outlives the groups
  const Chaos* chaos = nullptr;   ///< which chaos messages meet, if any
  Stream* compute = nullptr;      ///< of the same device: makes what is sent and uses what arrives; null: `stream`
  bool nccl = false;              ///< messages go over NCCL, not over MPI
};

/// N ranks, and all that collectives among them need: messages, their counts, memory. One thread at a time uses it.
///
/// All its ranks make and destroy it together.
class Group {
 public:
  /// @param name          as "world" or "dp"; the traffic is counted under it.
  /// @param communicator  the ranks.
  /// @param setup         what it points to outlives the group.
  /// @throws UserError    for an algorithm that these ranks cannot use (check_algorithm).
  Group(std::string name, Communicator communicator, const GroupSetup& setup);
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  /// As given.
  const std::string& name() const { return name_; }
  /// This rank, 0 <= rank < ranks.
  int rank() const { return communicator_.rank(); }
  /// N.
  int ranks() const { return communicator_.ranks(); }
  /// By which algorithm its collectives are made.
  Algorithm algorithm() const { return setup_.algorithm; }
  /// Which ranks share a node.
  const Topology& topology() const { return topology_; }
  /// Sends and receives.
  Transport& transport() { return *layers_.back(); }
  /// The ranks, for the library's own collectives.
  const Communicator& communicator() const { return communicator_; }
  /// Knows what is under way; null without one.
  FlightRecorder* recorder() const { return setup_.recorder; }
  /// The library's own collectives for memory of GPUs; null where messages go over MPI.
  NcclTransport* nccl() const { return nccl_; }
  /// Where its message buffers lie.
  const DeviceMemory& memory() const { return setup_.memory; }
  /// Adds up what arrives; collectives are work of this stream.
  Stream& stream() const { return *setup_.stream; }
  /// Makes what is sent and uses what arrives.
  Stream& compute() const { return setup_.compute != nullptr ? *setup_.compute : *setup_.stream; }
  /// Whether a collective orders itself: it begins when compute() has made what it reads, and compute() goes on when it is
  /// done. A CommunicationQueue orders its collectives itself, and turns this off meanwhile.
  bool follows_compute() const { return follows_compute_; }
  void follow_compute(bool follows) { follows_compute_ = follows; }  ///< as follows_compute()
  /// Counts virtual time; null without one.
  VirtualClock* clock() const { return setup_.clock; }
  /// Counts what the library's own collectives, and shared memory, carry: what no transport sees.
  void count(std::string_view collective, const Traffic& traffic);

  /// Scratch for messages, counted as communication: n elements of undefined content, until the next call.
  /// It grows to the largest that was asked for.
  Tensor scratch(DType type, std::int64_t n);

  /// Makes a collective of a few values that lie on the host: f(values) where messages lie there too; else they go to
  /// the device, and come back after f(their copy).
  /// @param values  at most host_values_bytes().
  void with_host_values(const Tensor& values, const std::function<void(const Tensor&)>& f);

  /// The ranks of this rank's node; those of all nodes that have this rank's place in theirs. Their traffic is counted
  /// as that of "NAME inside" and "NAME between". Error unless the algorithm is hierarchical, or auto chose it.
  Group& inside();
  Group& between();  ///< as inside()
  /// Whether there are these two groups.
  bool has_levels() const { return inside_ != nullptr; }

  /// The memory that its ranks share. Error unless the algorithm is shared, or auto may choose it.
  SharedMemory& shared();
  /// Whether there is such memory.
  bool has_shared() const { return shared_ != nullptr; }
  /// Where to allocate what is often reduced, such as gradients: in the shared memory if there is any, so that nothing
  /// is copied; else where the group's own buffers lie. All ranks allocate together then, and in the same order.
  DeviceMemory often_reduced();

 private:
  void add_innermost();
  void make_levels();

  std::string name_;
  Communicator communicator_;
  GroupSetup setup_;
  Topology topology_;
  std::vector<std::unique_ptr<Transport>> layers_;  // the innermost first
  NcclTransport* nccl_ = nullptr;                   // the innermost, where messages go over NCCL
  bool follows_compute_ = true;
  std::unique_ptr<Group> inside_, between_;
  std::unique_ptr<SharedMemory> shared_;
  Buffer scratch_;
  Buffer values_;  // of the host, while they are on the device
};

/// Bytes that a group keeps for values of the host that take part in collectives: none where messages lie on the host.
std::int64_t host_values_bytes(DeviceKind device, int ranks);

/// Refuses an algorithm that a group's ranks cannot use.
/// @throws UserError  for shared memory across nodes, or of GPUs; for hierarchical on nodes with different numbers of ranks.
void check_algorithm(Algorithm algorithm, const Topology& topology);

/// Tells a group's transport, and those of its two levels, that a collective begins; and at the end of the scope, that it
/// is over. Orders it behind and before the work of compute(), if it follows_compute().
class CollectiveScope {
 public:
  /// @param group       outlives the scope.
  /// @param collective  which.
  CollectiveScope(Group& group, const Collective& collective);
  ~CollectiveScope();
  CollectiveScope(const CollectiveScope&) = delete;
  CollectiveScope& operator=(const CollectiveScope&) = delete;

 private:
  Group& group_;
  const bool follows_;
  const int exceptions_;  // that were on their way when it began
};

}  // namespace rankwise
