#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/program/report.hpp"
#include "common/program/session.hpp"
#include "gpt2/run_report.hpp"
#include "lessons/frame/costs.hpp"
#include "lessons/frame/options.hpp"
#include "lessons/frame/run.hpp"
#include "lessons/frame/shards.hpp"
#include "lessons/frame/stop.hpp"

/// @file
/// The parts of train() that are the same for all lessons: checks before a run, what happens around each step, the report.

namespace rankwise {

/// The costs of rank r of N.
using CostsOfRank = std::function<Costs(RankOf)>;

/// N: `--ranks` of a dry run, or the ranks of the job.
/// @throws UserError  for fewer than one.
int ranks_of(const LessonOptions& options, const Session& session);

/// Refuses sizes that do not fit each other or N ranks, and messages that these cannot send.
/// @param batch  with the micro-batch that stands for the default.
/// @throws UserError  for the first of them.
void check_sizes(const LessonOptions& options, int N, const Layout& layout, const BatchShape& batch);

/// Refuses a run that does not fit into --memory-limit or the device.
/// @param most     bytes of the rank that needs most.
/// @param suggest  options with which the run would fit into so many bytes.
/// @throws UserError  with the table of categories and the suggestion.
void check_capacity(const LessonOptions& options, const CategoryBytes& most,
                    const std::function<std::string(std::int64_t)>& suggest);

/// Refuses data and checkpoints that the run cannot use.
/// @throws UserError  for the first of them.
void check_data(const LessonOptions& options, const BatchShape& batch);

/// Bytes of the device on the one of N ranks that needs most.
CategoryBytes largest_on_device(const CostsOfRank& costs, int N);

/// Block "traffic" of a dry run: what rank 0 would send.
void report_planned_traffic(Report& report, const Costs& costs);

/// Block "time" of a dry run with --link: what arithmetic and messages of rank 0 take in a step if nothing is hidden.
/// @param flops  of rank 0 in a step.
void report_planned_time(Report& report, const CommunicationOptions& options, const Costs& costs,
                         std::int64_t flops);

/// Check with --link: floating-point operations that the virtual clock has counted in the last step beside the formula.
/// All ranks make this call.
void report_arithmetic(Report& report, const Run& run, std::int64_t formula);

/// Blocks "memory" and "traffic": measured beside the formula, with their checks. All ranks make this call.
void report_costs(Report& report, const Run& run, const Costs& formula);

/// Check of parameters that all ranks have whole: the same on all of them. All ranks make this call.
void report_replicated(Report& report, const Run& run, const Tensor& parameters);

/// The model on all ranks, for what the frame reads and writes of it.
struct ModelOnRanks {
  HeldShards held;   ///< all that this rank holds
  HeldShards owned;  ///< of these what no other rank of its replica owns too
  int replica = 0;   ///< number of the copy of the model that these are of
};

/// Gives the shards that this rank holds their initial values: parameters by --seed, moments zero.
void initialize(const ModelOnRanks& model, const Run& run);

/// The course of a run: what was measured, what comes next. All ranks make the same calls.
class Progress {
 public:
  /// @param run, report  outlive it.
  Progress(Run& run, Report& report);

  /// Prints model, data, options, placement and @p description; opens the table of steps.
  void begin(const OptionTable& table, const Layout& layout, const std::string& description);
  /// Reads what --resume or --initial name into the shards that this rank holds.
  /// @return  updates of the optimizer that were made before; nothing unless the run is resumed.
  std::optional<std::int64_t> load(const ModelOnRanks& model);

  /// Number of the next step; nothing after the last one, or once a signal asks to stop (stop.hpp).
  std::optional<std::int64_t> next_step() const;
  /// Makes that step, and reports it.
  void make_step(const std::function<StepReport()>& train_step);
  /// Compares parameters that all ranks have whole, every --check-every steps.
  /// @failure  Error on all ranks: which of them differ.
  void check_replicated(const Tensor& parameters) const;
  /// Between two steps: validates, saves, keeps parameters to compare with the reference run, where that is due.
  void after_step(const ModelOnRanks& model, std::int64_t updates, const std::function<LossSum()>& evaluate);

  /// Blocks "loss" and "deviation", with the digest and its checks.
  void report_results(const ModelOnRanks& model);
  /// Block "time", the virtual clock's, and the trace.
  void report_times();
  /// Ends the report.
  /// @return  the exit status: 128 + the signal of a run that was stopped.
  int finish();

 private:
  void save(const ModelOnRanks& model, std::int64_t updates);
  void compare();

  Run& run_;
  Report& report_;
  StopRequests stop_;
  int stopped_by_ = 0;     // signal
  std::int64_t made_ = 0;  // steps, those before a checkpoint included
  std::int64_t last_ = 0;  // step after which the run ends
  RunRecord record_;
  std::vector<float> compared_;  // parameters of rank 0 after --compare steps
};

}  // namespace rankwise
