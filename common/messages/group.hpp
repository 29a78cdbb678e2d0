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
#include "common/messages/layers/recording_transport.hpp"
#include "common/messages/layers/traffic_ledger.hpp"
#include "common/messages/layers/virtual_clock.hpp"
#include "common/messages/nccl_transport.hpp"
#include "common/messages/shared_memory.hpp"
#include "common/messages/topology.hpp"
#include "common/messages/transport.hpp"
#include "common/messages/watchdog/flight_recorder.hpp"

/// @file
/// A group of ranks that call collectives together.

namespace rankwise {

/// Settings that all groups of a run have in common.
struct GroupSetup {
  DeviceMemory memory;                    ///< device memory for message buffers
  Stream* stream;                         ///< stream that sums received data and orders messages
  TrafficLedger* traffic;                 ///< counts sent messages
  Algorithm algorithm = Algorithm::ring;  ///< algorithm of the collectives
  int ranks_per_node = 0;                 ///< ranks that count as one node; 0: a node is a machine
  bool check_messages = false;            ///< compare the ranks' calls of every collective
  MessageLog* log = nullptr;              ///< records all messages; null: none; outlives the groups
  FlightRecorder* recorder =
      &flight_recorder();         ///< records pending operations for the watchdog; outlives the groups
  VirtualClock* clock = nullptr;  ///< counts the messages' virtual time; null: none; outlives the groups
  std::uint32_t chaos = 0;        ///< seed of chaos testing; 0: off
  Stream* compute = nullptr;      ///< stream that produces and consumes the messages' data; null: `stream`
  bool nccl = false;              ///< messages use NCCL instead of MPI
  std::int64_t leaves = 0;        ///< terms of each PartialSum, of all ranks, in a tree; 0: added in any order
};

/// N ranks, and all that collectives among them need: transport, traffic counts, scratch memory. One thread at a
/// time uses it.
///
/// All its ranks create and destroy it together.
class Group {
 public:
  /// @param name          name under which traffic is counted, as "world" or "dp".
  /// @param communicator  the ranks.
  /// @param setup         settings; the objects that it points to outlive the group.
  /// @throws UserError    for an algorithm that these ranks cannot use (check_algorithm).
  Group(std::string name, Communicator communicator, const GroupSetup& setup);
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  /// Its name.
  const std::string& name() const { return name_; }
  /// This rank, 0 <= rank < ranks.
  int rank() const { return communicator_.rank(); }
  /// N.
  int ranks() const { return communicator_.ranks(); }
  /// Algorithm of its collectives.
  Algorithm algorithm() const { return setup_.algorithm; }
  /// Number of terms of each PartialSum that its ranks add, in the order of a tree; 0: in any order.
  std::int64_t leaves() const { return setup_.leaves; }
  /// Nodes of its ranks.
  const Topology& topology() const { return topology_; }
  /// Sends and receives.
  Transport& transport() { return *layers_.back(); }
  /// The ranks, for the library's own collectives.
  const Communicator& communicator() const { return communicator_; }
  /// The flight recorder of pending operations; null for none.
  FlightRecorder* recorder() const { return setup_.recorder; }
  /// NCCL's own collectives for GPU memory; null where messages use MPI.
  NcclTransport* nccl() const { return nccl_; }
  /// Device memory of its message buffers.
  const DeviceMemory& memory() const { return setup_.memory; }
  /// Stream on which collectives run and received data is summed.
  Stream& stream() const { return *setup_.stream; }
  /// Stream that produces the data to send and consumes the data received.
  Stream& compute() const { return setup_.compute != nullptr ? *setup_.compute : *setup_.stream; }
  /// True if collectives synchronise with compute(): each begins after the earlier work of compute(), and later
  /// work of compute() begins after it. A CommunicationQueue does its own ordering and turns this off meanwhile.
  bool follows_compute() const { return follows_compute_; }
  void follow_compute(bool follows) { follows_compute_ = follows; }  ///< sets follows_compute()
  /// The virtual clock; null for none.
  VirtualClock* clock() const { return setup_.clock; }
  /// Counts traffic that no transport sees: that of the library's own collectives and of shared memory.
  void count(std::string_view collective, const Traffic& traffic);

  /// Scratch buffer for messages, counted as communication: n elements of undefined content, valid until the next
  /// call. It grows to the largest size requested.
  Tensor scratch(DType type, std::int64_t n);

  /// Runs a collective on a few values in host memory: f(values) if message buffers are in host memory too; else
  /// the values are copied to the device, f is called on the copy, and the result is copied back.
  /// @param values  at most host_values_bytes().
  void with_host_values(const Tensor& values, const std::function<void(const Tensor&)>& f);

  /// Group of the ranks on this rank's node. Its traffic is counted under "NAME inside". Error unless the algorithm
  /// is hierarchical, or auto chose it.
  Group& inside();
  /// Group of the ranks with this rank's position on each node, one from each. Its traffic is counted under
  /// "NAME between". Error as for inside().
  Group& between();
  /// True if inside() and between() exist.
  bool has_levels() const { return inside_ != nullptr; }

  /// Memory that its ranks share. Error unless the algorithm is shared, or auto may choose it.
  SharedMemory& shared();
  /// Memory for buffers that are reduced often, such as gradients: shared memory if the group has it, so that
  /// nothing is copied; else the memory of the group's own buffers. With shared memory all ranks allocate together,
  /// in the same order.
  DeviceMemory often_reduced();

 private:
  void add_innermost();
  void make_levels();

  std::string name_;
  Communicator communicator_;
  GroupSetup setup_;
  Topology topology_;
  std::vector<std::unique_ptr<Transport>> layers_;  // innermost first
  NcclTransport* nccl_ = nullptr;                   // the innermost layer, where messages use NCCL
  bool follows_compute_ = true;
  std::unique_ptr<Group> inside_, between_;
  std::unique_ptr<SharedMemory> shared_;
  Buffer scratch_;
  Buffer values_;  // device copy of host values
};

/// Bytes that a group keeps to copy host values to the device; 0 where message buffers are in host memory.
std::int64_t host_values_bytes(DeviceKind device, int ranks);

/// Rejects an algorithm that a group's ranks cannot use.
/// @throws UserError  for shared memory across nodes or of GPUs; for hierarchical on nodes of unequal size.
void check_algorithm(Algorithm algorithm, const Topology& topology);

/// Announces the beginning of a collective to the transports of a group and of its two levels, and its end when the
/// scope ends. If the group follows_compute(), orders the collective after earlier and before later work of
/// compute().
class CollectiveScope {
 public:
  /// @param group       outlives the scope.
  /// @param collective  the call.
  CollectiveScope(Group& group, const Collective& collective);
  ~CollectiveScope();
  CollectiveScope(const CollectiveScope&) = delete;
  CollectiveScope& operator=(const CollectiveScope&) = delete;

 private:
  Group& group_;
  const bool follows_;
  const int exceptions_;  // in flight at construction
};

}  // namespace rankwise
