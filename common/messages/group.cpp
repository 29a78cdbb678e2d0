#include "common/messages/group.hpp"

#include <algorithm>
#include <exception>
#include <utility>

#include <fmt/format.h>

#include "common/base/error.hpp"
#include "common/cuda/devices.hpp"
#include "common/messages/layers/chaos_transport.hpp"
#include "common/messages/layers/comparing_transport.hpp"
#include "common/messages/layers/link_transport.hpp"
#include "common/messages/mpi_transport.hpp"
#include "common/messages/rehearsal/rehearsal.hpp"
#include "common/messages/staging_transport.hpp"

namespace rankwise {

void check_algorithm(Algorithm algorithm, const Topology& topology)
{
  if (algorithm == Algorithm::shared && topology.device != DeviceKind::cpu)
    throw UserError(
        "--collectives=shared cannot be combined with --device=cuda.",
        "Ranks can read each other's memory on the host only. Use --collectives=ring, halving, library or "
        "auto.");
  if (algorithm == Algorithm::shared && topology.nodes > 1)
    throw UserError(
        fmt::format("--collectives=shared, but the ranks are on {} nodes.", topology.nodes),
        "Ranks can read each other's memory only inside a node. Use --collectives=hierarchical, ring or auto.");
  if (algorithm == Algorithm::hierarchical && topology.ranks_per_node() == 0)
    throw UserError(
        "--collectives=hierarchical, but the nodes do not all have the same number of ranks.",
        "Between nodes each rank has one partner on every node. Start the same number of ranks on each, or use "
        "--collectives=ring.");
}

Group::Group(std::string name, Communicator communicator, const GroupSetup& setup)
    : name_(std::move(name)),
      communicator_(std::move(communicator)),
      setup_(setup),
      topology_(
          topology_of_job(setup.ranks_per_node, setup.memory.device->kind()).among(communicator_.ranks_in_job()))
{
  check_algorithm(setup_.algorithm, topology_);
  add_innermost();
  const std::vector<int> in_job = communicator_.ranks_in_job();
  if (setup_.chaos != 0)
    layers_.push_back(std::make_unique<ChaosTransport>(
        *layers_.back(), setup_.chaos, in_job[static_cast<std::size_t>(rank())], *setup_.memory.device));
  if (setup_.clock && !Rehearsal::current())
    layers_.push_back(std::make_unique<LinkTransport>(*layers_.back(), *setup_.clock, in_job));
  layers_.push_back(std::make_unique<CountingTransport>(*layers_.back(), *setup_.traffic, name_, in_job));
  if (setup_.log)
    layers_.push_back(std::make_unique<RecordingTransport>(*layers_.back(), *setup_.log, communicator_, name_));
  if (setup_.check_messages)
    layers_.push_back(std::make_unique<ComparingTransport>(*layers_.back(), communicator_));
  if (setup_.recorder)  // outermost: comparing waits for other ranks too
    layers_.push_back(std::make_unique<WatchedTransport>(*layers_.back(), *setup_.recorder, communicator_, name_));

  const Algorithm of_large = chosen_algorithm(setup_.algorithm, topology_, "all-reduce", large_message);
  if (of_large == Algorithm::hierarchical) make_levels();
  if (of_large == Algorithm::shared) shared_ = std::make_unique<SharedMemory>(communicator_);
}

void Group::add_innermost()
{
  if (const Rehearsal* rehearsal = Rehearsal::current()) {
    layers_.push_back(std::make_unique<RehearsedTransport>(name_, communicator_.ranks_in_job(), rank(),
                                                           *setup_.stream, rehearsal->script));
    return;
  }
  if (setup_.nccl) {
    auto nccl = make_nccl_transport(communicator_, *setup_.stream);
    nccl_ = nccl.get();
    layers_.push_back(std::move(nccl));
    return;
  }
  layers_.push_back(std::make_unique<MpiTransport>(communicator_, *setup_.stream,
                                                   setup_.chaos != 0 ? Sends::synchronous : Sends::standard));
  if (setup_.memory.device->kind() != DeviceKind::cpu)
    layers_.push_back(std::make_unique<StagingTransport>(*layers_.back(), setup_.memory));
}

void Group::make_levels()
{
  const std::vector<int> on_node = topology_.ranks_of(topology_.node_of[static_cast<std::size_t>(rank())]);
  const auto place = static_cast<std::size_t>(topology_.place_of(rank()));
  std::vector<int> at_place;  // the ranks with this rank's place on their nodes
  for (int node = 0; node < topology_.nodes; ++node) at_place.push_back(topology_.ranks_of(node)[place]);
  GroupSetup setup = setup_;
  setup.algorithm = Algorithm::ring;
  setup.check_messages = false;  // this group compares already
  inside_ = std::make_unique<Group>(name_ + " inside", communicator_.among(on_node), setup);
  between_ = std::make_unique<Group>(name_ + " between", communicator_.among(at_place), setup);
}

void Group::count(std::string_view collective, const Traffic& traffic)
{
  setup_.traffic->count(name_, std::string(collective), traffic);
}

Tensor Group::scratch(DType type, std::int64_t n)
{
  const std::int64_t bytes = n * bytes_of(type);
  if (scratch_.tensor().bytes() < bytes) {
    scratch_ = Buffer();
    scratch_ = Buffer(setup_.memory, Category::communication, DType::u8, {bytes}, "message buffer of " + name_);
  }
  return Tensor(scratch_.tensor().raw(), type, {n});
}

void Group::with_host_values(const Tensor& values, const std::function<void(const Tensor&)>& f)
{
  const std::int64_t capacity = host_values_bytes(setup_.memory.device->kind(), ranks());
  if (capacity == 0) return f(values);
  if (values_.tensor().empty())
    values_ = Buffer(setup_.memory, Category::communication, DType::u8, {capacity}, "copy of host values");
  check(values.bytes() <= capacity, "too many host values for one collective");
  const Tensor there(values_.tensor().raw(), values.type(), {values.elements()});
  compute().copy(there, values);
  f(there);
  compute().copy(values, there);
  compute().synchronise();
}

std::int64_t host_values_bytes(DeviceKind device, int ranks)
{
  constexpr std::int64_t few = 4096;
  return device == DeviceKind::cpu ? 0 : std::max<std::int64_t>(few, 16 * ranks);
}

Group& Group::inside()
{
  check(inside_ != nullptr, "inside() was called on a group that is not hierarchical");
  return *inside_;
}

Group& Group::between()
{
  check(between_ != nullptr, "between() was called on a group that is not hierarchical");
  return *between_;
}

SharedMemory& Group::shared()
{
  check(shared_ != nullptr, "shared() was called on a group without shared memory");
  return *shared_;
}

DeviceMemory Group::often_reduced()
{
  DeviceMemory memory = setup_.memory;
  if (shared_) memory.device = &shared_->device();
  return memory;
}

CollectiveScope::CollectiveScope(Group& group, const Collective& collective)
    : group_(group), follows_(group.follows_compute()), exceptions_(std::uncaught_exceptions())
{
  if (follows_) group_.stream().wait(group_.compute().record());
  group_.transport().enter(collective);
  if (!group_.has_levels()) return;
  group_.inside().transport().enter(collective);
  group_.between().transport().enter(collective);
}

CollectiveScope::~CollectiveScope()
{
  if (follows_ && std::uncaught_exceptions() == exceptions_) group_.compute().wait(group_.stream().record());
  group_.transport().leave();
  if (!group_.has_levels()) return;
  group_.inside().transport().leave();
  group_.between().transport().leave();
}

}  // namespace rankwise
