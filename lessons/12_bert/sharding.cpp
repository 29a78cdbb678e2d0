#include "lessons/12_bert/sharding.hpp"

#include <cmath>

#include <fmt/format.h>

#include "common/collectives/collectives.hpp"
#include "common/messages/communication_queue.hpp"
#include "lessons/parallel/zero/bucket_gradients.hpp"
#include "lessons/parallel/zero/bucket_shards.hpp"
#include "lessons/parallel/zero/gradient_exchange.hpp"
#include "lessons/parallel/zero/shard_sums.hpp"
#include "lessons/parallel/zero/sharded_norm.hpp"
#include "lessons/parallel/zero/sharded_parameters.hpp"
#include "lessons/parallel/zero/zero3_costs.hpp"

namespace rankwise {

namespace {

/// Lessons 03 and 04: every rank has all parameters and gradients. With ZeRO-1 each updates its shards of them.
class ReplicatedParameters final : public Sharding {
 public:
  ReplicatedParameters(Run& r, const BertOptions& o)
      : run_(r), sharded_(o.zero == 1), buckets_(make_buckets(table_, o.gradients, o.bucket.value))
  {
  }

  Group& world() override { return world_; }
  std::vector<Range> micro_batches() const override
  {
    std::vector<Range> sequences;
    for (std::int64_t first = share_.first; first < share_.end(); first += run_.batch.micro_batch)
      sequences.push_back({first, run_.batch.micro_batch});
    return sequences;
  }

  void begin(Range sequences, bool training) override
  {
    if (!training) return;
    if (sequences.first == share_.first) gradients_->clear();
    sequences_ = sequences;
    current_ = gradients_->begin(sequences);
  }
  std::vector<Tensor> use(std::int64_t unit) override { return of(unit); }
  std::vector<Tensor> of(std::int64_t unit) const override { return views(parameters_.tensor(), unit); }
  void end_uses() override {}

  std::vector<Tensor> gradients(std::int64_t unit) override { return views(current_.flat, unit); }
  Tensor tied_to(const Tensor& tied) override
  {
    return current_.tied.empty() ? tied : current_.tied.reshaped(tied.shape());
  }
  /// In this rank's last micro-batch, and in no other, the gradients of a unit are final. A backward pass reaches a
  /// bucket's first unit last, so that unit completes the bucket, and its sum over the ranks is started on the queue;
  /// sums() waits for all that is pending_. GradientSum::finish() gives the tensors to be summed: the bucket's
  /// gradients, and in exact arithmetic, for the bucket with the tied token embedding, that tensor's second gradient.
  /// The first tensor is all-reduced by DDP, and only reduce-scattered by ZeRO-1, where a rank updates its shard of it.
  /// The second one is all-reduced by both.
  void unit_done(std::int64_t unit) override
  {
    // BEGIN EXERCISE 12.1
    if (sequences_.end() != share_.end()) return;
    for (const Bucket& bucket : buckets_) {
      if (bucket.units.first != unit) continue;
      const std::vector<PartialSum> ready = gradients_->finish(bucket.elements);
      pending_.push_back(queue_.start(fmt::format("bucket of unit {}", unit), [this, ready](Group& group) {
        if (sharded_) reduce_scatter_sum(ready[0], group);
        for (std::size_t i = sharded_ ? 1 : 0; i < ready.size(); ++i) all_reduce_sum(ready[i], group);
      }));
    }
    // END EXERCISE
  }
  void end() override { gradients_->end(sequences_); }

  std::vector<Tensor> sums() override
  {
    {
      const auto span = run_.time.span(Work::exposed, "summing gradients");
      for (Pending& bucket : pending_) bucket.wait();
      pending_.clear();
    }
    return slices(gradients_->total(), own_);
  }
  double norm_of(const std::vector<Tensor>& sums) override
  {
    return std::sqrt(sharded_ ? squared_norm(run_.kernels, sums, world_)
                              : run_.kernels->squared_norm(sums.front()).value());
  }
  ShardedAdamW& adamw() override { return adamw_; }
  void gather() override
  {
    if (!sharded_) return;
    const auto counted = run_.count("world");
    const auto span = run_.time.span(Work::exposed, "gathering parameters");
    for (const Bucket& bucket : buckets_) all_gather(parameters_.tensor().slice(bucket.elements), world_);
  }
  int replica() const override { return sharded_ ? 0 : world_.rank(); }
  void after_load() override
  {
    if (!sharded_) broadcast(adamw_.shards().front().parameters, 0, world_);
    adamw_.round(run_.kernels);
    gather();
  }
  Tensor replicated() const override { return parameters_.tensor(); }
  std::string describe() const override
  {
    return fmt::format("collectives by {}; {} buckets", describe_algorithm(world_), buckets_.size());
  }

 private:
  std::vector<Tensor> views(const Tensor& flat, std::int64_t unit) const
  {
    const auto number = static_cast<int>(unit);
    return unit_tensors(table_, number, flat.slice(table_.unit_elements(number)));
  }

  Run& run_;
  bool sharded_;  // ZeRO-1
  Group world_{"world", Communicator::world(), run_.group_setup()};
  Range share_ = Partition(run_.batch.global_batch, world_.ranks()).shard(world_.rank());
  ParameterTable table_{run_.config};
  Buffer parameters_{run_.memory, Category::parameters, run_.shape.type, {table_.elements()}, "parameters"};
  std::unique_ptr<GradientSum> gradients_ = run_.arithmetic.make_gradient_sum(
      run_.kernels, *run_.stream, world_.often_reduced(), gradient_layout(table_, run_.options.gradients));
  std::vector<Bucket> buckets_;
  CommunicationQueue queue_{world_, run_.time};
  std::vector<Pending> pending_;
  std::vector<Range> own_ = sharded_ ? shards_of(world_.rank(), make_bucket_shards(buckets_, world_.ranks()))
                                     : std::vector<Range>{{0, table_.elements()}};
  ShardedAdamW adamw_{run_.memory,       *run_.stream, table_, own_, slices(parameters_.tensor(), own_),
                      run_.options.adamw};
  Range sequences_{};        // of the micro-batch
  GradientTensors current_;  // its gradients
};

/// Lesson 06: every rank has 1/N of each FSDP unit, of its gradients and of its moments.
class ShardedUnits final : public Sharding {
 public:
  ShardedUnits(Run& r, const BertOptions& o)
      : run_(r),
        options_(o),
        plan_(step_plan(o)),
        parameters_(r.memory, *r.stream, queue_, plan_.table, plan_.buckets, own_, r.shape.type, o.gathering)
  {
  }

  Group& world() override { return world_; }
  std::vector<Range> micro_batches() const override { return micro_batches_of_step(run_.batch, world_); }

  void begin(Range sequences, bool training) override
  {
    sequences_ = sequences;
    parameters_.begin(uses_of(options_, training));
  }
  std::vector<Tensor> use(std::int64_t unit) override { return parameters_.use(unit); }
  std::vector<Tensor> of(std::int64_t unit) const override { return parameters_.of(unit); }
  void end_uses() override { parameters_.end(); }

  std::vector<Tensor> gradients(std::int64_t unit) override { return gradients_.allocate(unit); }
  Tensor tied_to(const Tensor& tied) override { return gradients_.tied_to(tied); }
  /// Reduce-scatters the FSDP unit that is complete with this unit, while the backward pass continues.
  void unit_done(std::int64_t unit) override
  {
    for (std::size_t bucket = 0; bucket < plan_.buckets.size(); ++bucket) {
      if (plan_.buckets[bucket].units.first != unit) continue;
      collect();
      const std::vector<Tensor> ready = gradients_.of(bucket);
      pending_ = queue_.start(fmt::format("bucket of unit {}", unit),
                              [ready](Group& group) { reduce_scatter_sum(ready, group); });
      in_flight_ = bucket;
    }
  }
  void end() override { collect(); }

  std::vector<Tensor> sums() override { return sums_.totals(); }
  double norm_of(const std::vector<Tensor>& sums) override
  {
    return std::sqrt(squared_norm(run_.kernels, sums, world_));
  }
  ShardedAdamW& adamw() override { return adamw_; }
  /// All-gathers the replicated parameters (--persist), of which each rank has updated its shard.
  void gather() override
  {
    if (parameters_.replicated().empty()) return;
    const auto counted = run_.count("world");
    const auto span = run_.time.span(Work::exposed, "gathering parameters");
    all_gather(parameters_.replicated(), world_);
  }
  int replica() const override { return 0; }
  void after_load() override
  {
    adamw_.round(run_.kernels);
    gather();
  }
  Tensor replicated() const override { return parameters_.replicated(); }
  std::string describe() const override
  {
    return fmt::format("collectives by {}; {} units", describe_algorithm(world_), plan_.buckets.size());
  }

 private:
  /// Adds this rank's shard of the bucket in flight to the sums, and frees the bucket.
  void collect()
  {
    if (!in_flight_) return;
    const auto span = run_.time.span(Work::exposed, "summing gradients");
    // BEGIN TWIN 05.1
    const std::size_t bucket = *in_flight_;
    pending_.wait();
    sums_.add(bucket, of_all_ranks(sequences_, world_), gradients_.of(bucket, own_[bucket]));
    gradients_.free(bucket);
    in_flight_.reset();
    // END TWIN
  }

  Run& run_;
  const BertOptions& options_;
  Group world_{"world", Communicator::world(), run_.group_setup()};
  StepPlan plan_;
  CommunicationQueue queue_{world_, run_.time};
  Pending pending_;
  std::optional<std::size_t> in_flight_;  // bucket
  std::vector<Range> own_ = shards_of(world_.rank(), make_bucket_shards(plan_.buckets, world_.ranks()));
  ShardedParameters parameters_;
  ShardedAdamW adamw_{run_.memory, *run_.stream, plan_.table, own_, parameters_.own(), run_.options.adamw};
  ShardSums sums_{run_.kernels, *run_.stream, run_.memory, plan_, own_, world_.ranks()};
  BucketGradients gradients_{run_.memory, *run_.stream, plan_.table, plan_.buckets, sums_of(plan_)};
  Range sequences_{};  // of the micro-batch
};

}  // namespace

std::unique_ptr<Sharding> make_sharding(Run& run, const BertOptions& options)
{
  if (options.zero == 3) return std::make_unique<ShardedUnits>(run, options);
  return std::make_unique<ReplicatedParameters>(run, options);
}

}  // namespace rankwise
