#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gpt2/gradient_sum.hpp"
#include "lessons/12_bert/options.hpp"
#include "lessons/frame/run.hpp"
#include "lessons/parallel/zero/sharded_adamw.hpp"

/// @file
/// Where parameters, gradients and moments are, and when they are sent: lessons 03, 04 and 06 behind one interface. It
/// speaks of units of the parameter table, and knows nothing of what a unit computes.

namespace rankwise {

/// The model state of a rank.
class Sharding {
 public:
  virtual ~Sharding() = default;

  /// All N ranks.
  virtual Group& world() = 0;
  /// Sequences of the global batch that this rank computes, one range per micro-batch.
  virtual std::vector<Range> micro_batches() const = 0;

  /// Begins a micro-batch: a forward pass, and in training its backward pass.
  virtual void begin(Range sequences, bool training) = 0;
  /// Parameters of the next unit that is used; valid until the next use.
  virtual std::vector<Tensor> use(std::int64_t unit) = 0;
  /// Parameters of another unit of the current use: of the one that has a tied tensor.
  virtual std::vector<Tensor> of(std::int64_t unit) const = 0;
  /// No parameter is used any more in this micro-batch.
  virtual void end_uses() = 0;

  /// The tensors to which the backward pass adds a unit's gradients.
  virtual std::vector<Tensor> gradients(std::int64_t unit) = 0;
  /// The tensor to which a second unit adds the gradient of a tied tensor.
  virtual Tensor tied_to(const Tensor& tied) = 0;
  /// The gradients of a unit are complete. They may be sent while the backward pass continues.
  virtual void unit_done(std::int64_t unit) = 0;
  /// The backward pass of the micro-batch has ended.
  virtual void end() = 0;

  /// Gradients of the shards that this rank updates, summed over the global batch; once a step.
  virtual std::vector<Tensor> sums() = 0;
  /// Norm of the whole model's gradient, from sums().
  virtual double norm_of(const std::vector<Tensor>& sums) = 0;
  /// The shards that this rank updates, with their moments.
  virtual ShardedAdamW& adamw() = 0;
  /// The shards have been updated: the next forward pass finds the new parameters.
  virtual void gather() = 0;

  // What the frame asks of a lesson (lessons/frame/train.hpp):

  /// Number of the replica to which the shards belong.
  virtual int replica() const = 0;
  /// The shards have values now: makes all ranks find them.
  virtual void after_load() = 0;
  /// Parameters that every rank has whole, to be compared; may be empty.
  virtual Tensor replicated() const = 0;
  /// Collectives and pieces, in one line.
  virtual std::string describe() const = 0;
};

/// Makes the layout that --zero names. All ranks call it together.
/// @param run, options  outlive it.
std::unique_ptr<Sharding> make_sharding(Run& run, const BertOptions& options);

}  // namespace rankwise
