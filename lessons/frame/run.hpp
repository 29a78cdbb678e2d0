#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/memory/device.hpp"
#include "common/messages/communication.hpp"
#include "common/program/session.hpp"
#include "common/program/time_ledger.hpp"
#include "data/corpus.hpp"
#include "data/loader.hpp"
#include "gpt2/activations.hpp"
#include "gpt2/model.hpp"
#include "gpt2/run_report.hpp"
#include "lessons/frame/options.hpp"

/// @file
/// Everything that the frame provides to a lesson: device, ledgers, messages and data.

namespace rankwise {

/// One rank's device, ledgers, messages and data.
struct Run {
  /// All ranks make and destroy it together.
  /// @param division  this rank's part of a step.
  Run(const LessonOptions& options, const Session& session, const Division& division);

  const LessonOptions& options;  ///< as they were checked
  const Session& session;        ///< rank r of N
  ModelConfig config;            ///< L, H, C, V
  BatchShape batch;              ///< G, B, T
  ActivationShape shape;         ///< shape of one micro-batch

  TimeLedger time;                     ///< time by kind of work
  MemoryLedger ledger;                 ///< every buffer, by category
  std::unique_ptr<Device> device;      ///< device on which this rank computes
  std::unique_ptr<Stream> stream;      ///< its queue of work, processed in order
  DeviceMemory memory;                 ///< device memory, counted in the ledger
  Arithmetic arithmetic;               ///< order and precision of sums
  Communication messages;              ///< setup of all groups: traffic ledger, virtual clock, transport
  Kernels kernels;                     ///< arithmetic of the model's layers
  std::unique_ptr<Recorder> recorder;  ///< notes what they compute, with --record; else null
  Record record;                       ///< notes of all ranks, on rank 0
  std::int64_t recorded_steps = 0;     ///< steps of it

  Tokens tokens;                  ///< tokens of the corpus
  Loader loader;                  ///< windows of the training split, by step
  Loader validation;              ///< windows of the validation split
  std::int64_t epoch;             ///< sequences of an epoch
  LearningRateSchedule schedule;  ///< learning rate of each step

  std::map<std::string, Traffic> sent;  ///< traffic of this step so far, by axis
  std::map<std::string, std::vector<std::int64_t>>
      receivers;         ///< its bytes, by axis and by the rank that receives them
  StepReport checked{};  ///< loss, norm and learning rate of the step that check_finite() saw last

  /// Setup of a group of ranks.
  GroupSetup group_setup()
  {
    GroupSetup setup = messages.setup(default_algorithm(arithmetic));
    setup.leaves = options.leaves();
    return setup;
  }

  /// The run's arithmetic on another stream.
  Kernels make_kernels(const DeviceMemory& where, Stream& queue) const;

  /// Reads sequences of a step's global batch and copies them to the device. Those after its last one are padding, which
  /// is not counted.
  /// @param kept  activations of the micro-batch, which hold its tokens.
  MicroBatch load(const Activations& kept, Range sequences, std::int64_t step);

  /// load() of the tokens at @p positions of each sequence only.
  MicroBatch load(const Activations& kept, Range sequences, std::int64_t step, Range positions);

  /// Reads B windows of the validation split in order and copies them to the device, for a forward pass without
  /// training.
  /// @param windows  windows after the end of the split are padding, which is not counted.
  MicroBatch load_validation(const Activations& kept, Range windows);
  /// load_validation() of the tokens at @p positions of each window only.
  MicroBatch load_validation(const Activations& kept, Range windows, Range positions);

  /// Copies the tokens at @p positions of a text to the device, for a forward pass without training. The text is the first
  /// sequence of the micro-batch, from which only the last T tokens are left; what comes after it is padding.
  MicroBatch load_text(const Activations& kept, std::span<const Token> text, std::int64_t sequences,
                       Range positions);

  /// This rank's sum of the loss of the validation split: it computes every n-th micro-batch.
  /// @param kept      as for load().
  /// @param part      index and number n of the ranks that divide the split; each makes the same number of calls of
  ///                  @p forward.
  /// @param forward   forward pass of a micro-batch, without training.
  LossSum validate(const Activations& kept, Part part, const std::function<LossSum(const MicroBatch&)>& forward);
  /// validate() for a lesson that loads the windows of a micro-batch itself.
  LossSum validate(Part part, const std::function<LossSum(Range windows)>& forward) const;

  /// Advances the virtual clock, if there is one, by the forward pass of a unit of the parameter table.
  /// A trace shows that pass as an event of its own, with the caller's line.
  void charge_forward(std::int64_t unit, SourceLocation where = SourceLocation::current())
  {
    charge(unit, 1, "forward", where);
  }
  /// Advances it by the backward pass, which takes two matrix products for each one of the forward pass.
  void charge_backward(std::int64_t unit, SourceLocation where = SourceLocation::current())
  {
    charge(unit, 2, "backward", where);
  }

  /// Advances it by the floating-point operations of a part of a unit.
  void charge_flops(std::int64_t flops, const char* what, SourceLocation where = SourceLocation::current());

  /// Traffic of this rank along an axis so far: of the groups whose names begin with it, as "dp", "dp inside".
  Traffic sent_so_far(const std::string& axis) const;

  /// Scope that adds the traffic along an axis during its lifetime to Run::sent and Run::receivers, or subtracts it.
  class Counted {
   public:
    /// @param run       outlives it.
    /// @param axis      name of a group.
    /// @param left_out  true if the traffic is subtracted.
    Counted(Run& run, std::string axis, bool left_out);
    ~Counted();
    Counted(const Counted&) = delete;
    Counted& operator=(const Counted&) = delete;

   private:
    Run& run_;
    std::string axis_;
    bool left_out_;
    Traffic before_;
    std::vector<std::int64_t> before_to_;  // by receiver
  };
  /// Counts the traffic along an axis until the end of the scope: `const auto counted = run.count("world");`
  [[nodiscard]] Counted count(const std::string& axis) { return {*this, axis, false}; }
  /// Inside such a scope: leaves out the traffic along the axis until the end of this one.
  [[nodiscard]] Counted leave_out(const std::string& axis) { return {*this, axis, true}; }

 private:
  void charge(std::int64_t unit, int passes, const char* what, SourceLocation where);
  void advance_clock(std::int64_t flops, const char* what);
  MicroBatch place_tokens(const Activations& kept, Range sequences, std::int64_t step, Range positions);

  Batch host_batch_;  // windows on the host, before they are copied to the device
  Batch host_part_;   // the same of a run of their tokens
};

}  // namespace rankwise
