#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "gpt2/adamw.hpp"
#include "gpt2/files/checkpoint.hpp"
#include "lessons/frame/shards.hpp"
#include "lessons/parallel/offload/offload.hpp"
#include "lessons/parallel/offload/tiered_vector.hpp"
#include "lessons/parallel/offload/tiers.hpp"

/// @file
/// AdamW where its states are stored: on the device, or on the host with the states there or on disk.

namespace rankwise {

/// Numbers of one update of all parameters.
struct TieredStep {
  std::int64_t step = 0;      ///< the run's step, for messages
  double loss = 0;            ///< for messages
  double learning_rate = 0;   ///< this step's
  double gradient_scale = 1;  ///< factor of the gradients
};

/// Called with the elements of a block, and the sums of their gradients over the global batch.
using BeforeBlock = std::function<void(Range elements, const Tensor& gradients)>;

/// AdamW over one rank's shards, block by block. Blocks are fetched to where AdamW runs, and stored after the
/// update. An element's update depends on no other element, so the result is that of one AdamW over all elements.
///
/// step() updates all blocks when all gradients are complete. An early update takes them one by one, as gradients
/// arrive:
///
///     adamw.begin(numbers);
///     for (each block, in order) adamw.update(block, gradient);
///     adamw.end();
class TieredAdamW {
 public:
  /// Moments and weights are undefined until for_each() has filled them. All references outlive this.
  /// @param plan        tier of each state.
  /// @param tiers       moves the blocks.
  /// @param table       all parameters.
  /// @param parameters  this rank's shards in the tier where they are stored.
  /// @param options     constants of AdamW.
  /// @throws Error      when the memory does not suffice.
  TieredAdamW(const OffloadPlan& plan, Tiers& tiers, const ParameterTable& table,
              std::shared_ptr<BlockStore> parameters, const AdamWOptions& options);

  /// Calls @p work for each block of the updated weights, with its moments, where AdamW runs. With Access::write and
  /// Access::update blocks are stored when @p work has changed them; with Access::read they are fetched only.
  void for_each(Access access, const UseShard& work);
  /// The weights that this rank updates, and their moments, to load, to save and to compare.
  ///
  /// Its for_each makes one walk over the blocks, with the access that it is given, and calls its function for every
  /// piece that a block has in common with a range, never with an empty one: the elements of the piece in the table's
  /// flat vector, their weights and both moments, and the stream. Its copy_parameters copies a range of the weights,
  /// across blocks if need be, and fetches no other blocks; the copy is complete when it returns.
  ///
  /// @param ranges  within this rank's shards. With Access::write they cover all of these: a block of which only some
  ///                elements were written is stored with undefined ones.
  /// @return        refers to this.
  HeldShards shards(const std::vector<Range>& ranges);
  /// Rounds the master weights to the parameters; does nothing without master weights.
  void round();
  /// Updates all parameters. Not for early updates, which have no slots for gradients.
  /// @param gradients  sums over the global batch, in the tier where they are stored.
  void step(std::shared_ptr<BlockStore> gradients, const TieredStep& numbers);
  /// Begins an update whose gradients arrive block by block, and starts to fetch the first blocks.
  void begin(const TieredStep& numbers);
  /// Updates the parameters of a block.
  /// @param block     0, 1, ... in this order.
  /// @param gradient  (its elements) sums over the global batch, where AdamW runs; finite.
  void update(std::size_t block, const Tensor& gradient);
  /// Sets what is called with the elements and the summed gradients of each block, before it is updated.
  void before_block(BeforeBlock call) { before_block_ = std::move(call); }
  /// Ends an update after its last block. All blocks are stored when this returns.
  void end();
  /// Stops an update with gradients that are not finite.
  /// @param first   first element that is not finite, numbered as in first_not_finite(); nothing if all are finite.
  /// @throws Error  with the step and the name of that tensor.
  void expect_finite(std::optional<std::int64_t> first) const;
  /// True between begin() and end() of an update.
  bool is_under_way() const { return under_way_; }
  /// First element that is not finite. The parameters of the table are numbered first, then all gradients.
  /// @param gradients     sums of gradients; nullptr: only parameters are checked.
  /// @param of_gradients  first such element of gradients that are no longer stored.
  std::optional<std::int64_t> first_not_finite(std::shared_ptr<BlockStore> gradients,
                                               std::optional<std::int64_t> of_gradients = std::nullopt);

  /// Updates made so far.
  std::int64_t updates() const { return updates_; }
  /// Resumes after @p updates updates, whose moments have been loaded.
  void resume(std::int64_t updates) { updates_ = updates; }

 private:
  /// The weights in f32: master weights where there are any, else the parameters.
  TieredVector& weights() { return master_ ? *master_ : parameters_; }
  void round_block(std::size_t block, const Tensor& weights);

  Tiers& tiers_;
  const ParameterTable& table_;
  ComputePlace where_;  // device or host: where AdamW runs
  AdamWOptions options_;
  std::vector<std::vector<DecayRun>> runs_;  // by block
  TieredVector parameters_;
  TieredVector first_, second_;
  std::optional<TieredVector> master_;
  std::optional<TieredVector> gradients_;  // none for early updates
  BeforeBlock before_block_;
  std::int64_t updates_ = 0;
  TieredStep step_;  // the current update's
  bool under_way_ = false;
};

}  // namespace rankwise
