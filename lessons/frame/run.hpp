#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "common/memory/device.hpp"
#include "common/messages/communication.hpp"
#include "common/program/session.hpp"
#include "common/program/time_ledger.hpp"
#include "data/corpus.hpp"
#include "data/loader.hpp"
#include "gpt2/activations.hpp"
#include "gpt2/model.hpp"
#include "lessons/frame/options.hpp"

/// @file
/// What the frame keeps for a lesson, because it is the same in all of them.

namespace rankwise {

/// One rank's device, ledgers, messages and data.
struct Run {
  /// All ranks make and destroy it together.
  /// @param batch, shape  that the lesson's options give this rank.
  Run(const LessonOptions& options, const Session& session, const BatchShape& batch, const ActivationShape& shape);

  const LessonOptions& options;  ///< as they were checked
  const Session& session;        ///< rank r of N
  ModelConfig config;            ///< L, H, C, V
  BatchShape batch;              ///< G, B, T
  ActivationShape shape;         ///< of one micro-batch

  TimeLedger time;                   ///< where the time goes
  MemoryLedger ledger;               ///< every buffer, by category
  std::unique_ptr<Device> device;    ///< where this rank computes
  std::unique_ptr<Stream> stream;    ///< the order in which it computes
  DeviceMemory memory;               ///< of the device, counted in the ledger
  Arithmetic arithmetic;             ///< the order of sums
  Communication messages;            ///< what all groups share: traffic, virtual clock, transport
  std::unique_ptr<Kernels> kernels;  ///< what the pieces of the model compute with

  Tokens tokens;                  ///< the text
  Loader loader;                  ///< deals out windows of it
  Loader validation;              ///< the same of the validation split
  LearningRateSchedule schedule;  ///< learning rate of each step

  std::map<std::string, Traffic> sent;  ///< by axis, counted since the step began

  /// What a group of ranks is made with.
  GroupSetup group_setup() { return messages.setup(default_algorithm(arithmetic)); }

  /// Reads sequences of a step's global batch and places them.
  /// @param kept  where the pass keeps its tokens.
  MicroBatch load(const Activations& kept, Range sequences, std::int64_t step);

  /// Reads B windows of the validation split in order and places them, for a forward pass that is not trained on.
  /// @param windows  those after the last one of the split count nothing.
  MicroBatch load_validation(const Activations& kept, Range windows);

  /// Loss of the whole validation split, of which this rank computes every n-th micro-batch: a sum over its own.
  /// @param kept      as for load().
  /// @param part      index and number n of ranks that share the split; each makes as many calls of @p forward.
  /// @param forward   forward pass of a micro-batch that is not trained on.
  LossSum validate(const Activations& kept, Part part, const std::function<LossSum(const MicroBatch&)>& forward);

  /// Counts the arithmetic of a unit of the table on the virtual clock, if there is one.
  void charge_forward(std::int64_t unit) { charge(unit, 1, "forward"); }
  /// The same of its backward pass: two products for each of the forward pass.
  void charge_backward(std::int64_t unit) { charge(unit, 2, "backward"); }

  /// What this rank has sent along an axis so far: in the groups whose names begin with it, as "dp", "dp inside", "pp forward".
  Traffic sent_so_far(const std::string& axis) const;

  /// From its making to its end adds what is sent along an axis to Run::sent, or takes it off.
  class Counted {
   public:
    /// @param run       outlives it.
    /// @param axis      name of a group.
    /// @param left_out  taken off.
    Counted(Run& run, std::string axis, bool left_out);
    ~Counted();
    Counted(const Counted&) = delete;
    Counted& operator=(const Counted&) = delete;

   private:
    Run& run_;
    std::string axis_;
    bool left_out_;
    Traffic before_;
  };
  /// Counts what is sent along an axis until the end of the scope: `const auto counted = run.count("world");`
  [[nodiscard]] Counted count(const std::string& axis) { return {*this, axis, false}; }
  /// Within such a scope: does not count what is sent along the axis until the end of this one.
  [[nodiscard]] Counted leave_out(const std::string& axis) { return {*this, axis, true}; }

 private:
  void charge(std::int64_t unit, int passes, const char* what);

  Batch host_batch_;  // windows on their way to the device
};

}  // namespace rankwise
