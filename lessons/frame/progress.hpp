#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "common/files/output_file.hpp"
#include "common/program/report.hpp"
#include "common/program/time_ledger.hpp"
#include "gpt2/run_report.hpp"
#include "lessons/frame/options.hpp"
#include "lessons/frame/run.hpp"
#include "lessons/frame/shards.hpp"
#include "lessons/frame/stop.hpp"

/// @file
/// The progress of a run: what happens around a step and between two steps.

namespace rankwise {

/// This rank's shards of the model, as the frame reads and writes them.
struct ModelOnRanks {
  HeldShards held;   ///< all shards that this rank holds
  HeldShards owned;  ///< shards that it owns: within a replica every element has one owner
  int replica = 0;   ///< number of the replica to which they belong
};

/// Initialises the shards that this rank holds: parameters from --seed, moments with zero.
void initialize(const ModelOnRanks& model, const Run& run);

/// Progress of a run, whatever ranks it is on.
struct Reached {
  RunRecord record;                ///< losses, norms, validations
  std::int64_t made = 0;           ///< number of steps, including those before a checkpoint
  std::int64_t settled = 0;        ///< number of steps that settle() has ended
  std::vector<float> compared;     ///< parameters of rank 0 after --compare steps
  std::optional<StepReport> last;  ///< the step that was made as a rank died, and is not reported yet

  /// Steps that are made, reported or not.
  std::int64_t steps() const { return made + (last ? 1 : 0); }
};

/// The progress of a run: steps, validation, checkpoints and report. All ranks make the same calls.
class Progress {
 public:
  /// @param run, report, reached  outlive it.
  Progress(Run& run, Report& report, Reached& reached);

  /// Prints model, data, options, placement and @p description; opens the table of steps.
  void begin(const OptionTable& table, const Layout& layout, const std::string& description);
  /// Reads the file of --resume or --initial into the shards that this rank holds.
  /// @return  number of optimizer updates before the checkpoint; nothing unless the run resumes.
  std::optional<std::int64_t> load(const ModelOnRanks& model);

  /// Number of the first step that is left. Before it, the step that was made as a rank died is reported, and --watch begins.
  std::int64_t first_step();
  /// Number of steps after which the run ends: those of the schedule, or after a signal to stop those made so far (stop.hpp).
  std::int64_t last_step() const { return stopped_by_ == 0 ? last_ : made_; }
  /// Begins the ledgers of a step.
  /// @return  false if it was made before a rank died, and only what is due after it is left.
  bool begin_step(std::int64_t step);
  /// Reports what the step has returned, and asks all ranks for signals.
  void end_step(StepReport measured, const HeldShards& held);
  /// True if these ranks have made a step: if not, they have sent nothing that could be compared with a formula.
  bool has_stepped() const { return stepped_; }
  /// Compares replicated parameters, which every rank has whole, every --check-every steps.
  /// @failure  Error on all ranks, with the ranks that differ.
  void check_replicated(const Tensor& parameters) const;
  /// True every --evaluate-every steps and after the last one, unless a signal has stopped the run.
  bool validation_is_due() const;
  /// Reports the loss that @p evaluate returns.
  void validate(const std::function<double()>& evaluate);
  /// True every --checkpoint-every steps, after the last one, and if a signal has stopped the run.
  bool save_is_due() const;
  /// Writes the checkpoint.
  /// @param updates  of the optimizer so far.
  void save(const ModelOnRanks& model, std::int64_t updates);
  /// Everything due after the step is done: keeps parameters for the comparison with the reference run, and the report so far.
  void settle(const ModelOnRanks& model);

  /// Between two tokens of a sample: true if a signal has asked any rank to stop, which the report says.
  bool asked_to_stop();

  /// Blocks "loss" and "deviation", and the digest with its checks.
  void report_results(const ModelOnRanks& model);
  /// Blocks "time", "utilisation" (with --peak) and "virtual clock"; writes the trace.
  void report_times();
  /// Ends --watch, and says on stderr which steps the record has before an error.
  void tell_failure();
  /// Ends the report, and writes the page of --html.
  /// @return  the exit status; 128 + the signal if a signal stopped the run.
  int finish();

 private:
  void log(const nlohmann::json& line);
  void note_step(const StepReport& measured, const std::map<std::string, double>& before);
  bool is_due(std::int64_t every) const { return every > 0 && made_ % every == 0; }
  void compare();
  void report_utilisation();

  /// A step from begin_step() to end_step().
  struct TimedStep {
    explicit TimedStep(TimeLedger& time);
    std::map<std::string, double> before;  // seconds by kind of work
    Stopwatch clock;
    TimeLedger::Span span;
  };

  Run& run_;
  Report& report_;
  StopRequests stop_;
  std::optional<TimedStep> timed_;
  std::optional<ShownRanks> shown_;
  bool stepped_ = false;   // true if these ranks have made a step
  int stopped_by_ = 0;     // signal; 0 for none
  AppendedFile log_;       // --log's
  std::int64_t last_ = 0;  // number of steps after which the run ends
  Reached& reached_;
  std::optional<ClockOffset> clock_;  // at the start, for a trace
  RunRecord& record_ = reached_.record;
  std::int64_t& made_ = reached_.made;
};

}  // namespace rankwise
