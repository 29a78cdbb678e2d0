#include "lessons/10_3d_parallel/whole_model.hpp"

#include "common/collectives/collectives.hpp"
#include "common/error.hpp"
#include "common/partition.hpp"

namespace rankwise {

UnitOwners owners_of(const PipelinePlan& plan, Group& line)
{
  return {line, [&plan](int unit) {
            for (const PipelineStage& stage : plan.stages)
              if (stage.units.contains(unit)) return plan.schedule.rank_of(stage.number);
            throw Error("a unit that is in no stage");
          }};
}

DividedModel whole_model(const MeshPlan& plan, const std::vector<Tensor>& shards, const UnitOwners& owners,
                         Group& parts, Group& replicas)
{
  const auto copy_own = [&plan, shards, &replicas](Range elements, const Tensor& to) {
    const std::vector<Range> own = plan.ranges();
    const auto copy = [&](std::size_t i, Range of, const Tensor& place) {
      replicas.compute().copy(place, shards[i].slice({of.first - plan.updated(own[i]).first, of.count}));
    };
    for (std::size_t i = 0; i < own.size(); ++i) {
      if (!own[i].contains(elements.first) || is_copy(plan.stages().back(), own[i])) continue;
      if (!plan.zero) return copy(i, elements, to);
      for (int replica = 0; replica < replicas.ranks(); ++replica) {
        const Range segment = Partition(own[i].count, replicas.ranks()).segment(replica);
        const Range shared = intersect(elements, {own[i].first + segment.first, segment.count});
        if (shared.empty()) continue;
        const Tensor place = to.slice({shared.first - elements.first, shared.count});
        if (replica == replicas.rank()) copy(i, shared, place);
        broadcast(place, replica, replicas);
      }
    }
  };
  return {plan.pipeline.config, plan.pipeline.table, copy_own, parts, &owners};
}

}  // namespace rankwise
