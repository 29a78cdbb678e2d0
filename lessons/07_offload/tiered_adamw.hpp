#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "gpt2/adamw.hpp"
#include "gpt2/checkpoint.hpp"
#include "lessons/07_offload/offload.hpp"
#include "lessons/07_offload/tiered_vector.hpp"
#include "lessons/07_offload/tiers.hpp"
#include "lessons/frame/shards.hpp"

/// @file
/// AdamW where its states are: on the device, or on the host with the states there or on disk.

namespace rankwise {

/// The numbers of an update of all parameters.
struct TieredStep {
  std::int64_t step = 0;      ///< of the run, for messages
  double loss = 0;            ///< for messages
  double learning_rate = 0;   ///< of this step
  double gradient_scale = 1;  ///< what gradients are multiplied by
};

/// AdamW over what one rank owns, block by block. What an update reads and writes comes to where AdamW runs, and goes back.
/// An element's update depends on no other element, so it is that of an AdamW over all of them.
///
/// All blocks are updated by step(), when the gradients are there; or one by one, as gradients come:
///
///     adamw.begin(numbers);
///     for (each block, in order) adamw.update(block, gradient);
///     adamw.end();
class TieredAdamW {
 public:
  /// Moments are of undefined content, as the weights are, until for_each() has filled them.
  /// @param plan        what lies where.
  /// @param tiers       brings the blocks.
  /// @param table       all parameters.
  /// @param parameters  of this rank, where they lie.
  /// @param where       AdamW runs.
  /// @param options     constants.
  /// @throws Error      when there is no room. All that is given outlives this.
  TieredAdamW(const OffloadPlan& plan, Tiers& tiers, const ParameterTable& table, BlockStore& parameters,
              const ComputePlace& where, const AdamWOptions& options);

  /// Calls @p work for each block of the weights that are updated, with their moments, where AdamW runs.
  void for_each(Access access, const UseShard& work);
  /// Makes the parameters the rounded copy of the master weights; without these they stay as they are.
  void round();
  /// Updates all parameters. Not where updates are early: there is no room for gradients.
  /// @param gradients  sums over the global batch, where they lie.
  void step(BlockStore& gradients, const TieredStep& numbers);
  /// Begins an update whose gradients come block by block; what the first blocks need comes from now on.
  void begin(const TieredStep& numbers);
  /// Updates the parameters of a block.
  /// @param block     0, 1, ... in this order.
  /// @param gradient  (its elements) sums over the global batch, where AdamW runs; finite.
  void update(std::size_t block, const Tensor& gradient);
  /// Ends an update that has come to the last block. All of them are back when this returns.
  void end();
  /// Refuses to go on with an update.
  /// @param first   the first element that is not finite, as first_not_finite() counts; nothing if all are.
  /// @throws Error  names the step and that tensor.
  void expect_finite(std::optional<std::int64_t> first) const;
  /// Whether an update has begun, and not ended.
  bool is_under_way() const { return under_way_; }
  /// Copies some of the weights, neighbours within a shard.
  /// @param to  (elements) f32, in memory of the host; they are there when this returns.
  void copy_own(Range elements, const Tensor& to);
  /// The first element that is not finite, counted through all parameters of the table and then through all gradients.
  /// @param gradients     where they lie; nullptr: only parameters are looked at.
  /// @param of_gradients  of gradients that are not there any more.
  std::optional<std::int64_t> first_not_finite(BlockStore* gradients,
                                               std::optional<std::int64_t> of_gradients = std::nullopt);

  /// Updates made so far.
  std::int64_t updates() const { return updates_; }
  /// Goes on after @p updates updates whose moments somebody has filled in.
  void resume(std::int64_t updates) { updates_ = updates; }

 private:
  /// A vector that is this optimizer's own.
  struct Owned {
    std::unique_ptr<BlockStore> store;
    TieredVector vector;
  };
  static Owned make(const OffloadPlan& plan, Tiers& tiers, const char* what);
  TieredVector& weights() { return master_ ? master_->vector : parameters_; }
  void round_block(std::size_t block, const Tensor& weights);

  Tiers& tiers_;
  const ParameterTable& table_;
  ComputePlace where_;
  AdamWOptions options_;
  std::vector<std::vector<DecayRun>> runs_;  // by block
  TieredVector parameters_;
  Owned first_, second_;
  std::optional<Owned> master_;
  std::optional<TieredVector> gradients_;  // unless updates are early
  std::int64_t updates_ = 0;
  TieredStep step_;  // of the update that is under way
  bool under_way_ = false;
};

}  // namespace rankwise
