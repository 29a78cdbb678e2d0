#include "lessons/frame/progress.hpp"

#include <utility>

#include <fmt/format.h>

#include "common/base/json.hpp"
#include "common/base/text.hpp"
#include "common/messages/agreement.hpp"
#include "common/messages/job_report.hpp"
#include "common/program/in_turn.hpp"
#include "common/program/launcher.hpp"
#include "common/program/placement.hpp"
#include "common/program/trace.hpp"
#include "gpt2/files/checkpoint.hpp"
#include "gpt2/reference_run.hpp"
#include "gpt2/utilisation.hpp"
#include "lessons/frame/instruments/page.hpp"
#include "lessons/frame/instruments/recording.hpp"
#include "lessons/frame/replicas.hpp"

namespace rankwise {

void initialize(const ModelOnRanks& model, const Run& run)
{
  model.held.for_each(Access::write, [&](const Shard& shard, Stream& stream) {
    initialize_parameters(stream, shard.parameters, shard.table, run.config, run.options.seed, shard.owned.first);
    stream.zero(shard.first_moments);
    stream.zero(shard.second_moments);
  });
}

namespace {

/// Seconds so far, by kind of work.
std::map<std::string, double> seconds_by_kind(const TimeLedger& time)
{
  std::map<std::string, double> all;
  for (int kind = 0; kind < work_kinds; ++kind)
    all.emplace(name_of(static_cast<Work>(kind)), time.seconds(static_cast<Work>(kind)));
  return all;
}

/// A step's line of --log.
/// @param before  seconds_by_kind() before the step.
nlohmann::json line_of(std::int64_t step, const StepReport& measured, const Run& run,
                       const std::map<std::string, double>& before)
{
  const auto tokens = static_cast<double>(run.batch.global_batch * run.batch.sequence);
  nlohmann::json line = {{"step", step},
                         {"loss", measured.loss},
                         {"gradient_norm", measured.gradient_norm},
                         {"learning_rate", measured.learning_rate},
                         {"seconds", measured.seconds},
                         {"tokens_per_s", tokens / measured.seconds}};
  for (const auto& [kind, seconds] : seconds_by_kind(run.time)) line["time"][kind] = seconds - before.at(kind);
  const CategoryBytes held = run.ledger.current(Tier::device);
  for (int c = 0; c < category_count; ++c)
    if (const auto category = static_cast<Category>(c); held[category] > 0)
      line["memory"][std::string(name_of(category))] = held[category];
  return line;
}

/// Text for a person who waits, after a step: ", loss 5.38, 71,000 tokens/s, 9.1 MB, 0:12 to go".
std::string progress_note(const StepReport& last, const Run& run, std::int64_t steps_left)
{
  const auto tokens = static_cast<double>(run.batch.global_batch * run.batch.sequence);
  const auto left_s = static_cast<std::int64_t>(last.seconds * static_cast<double>(steps_left));
  return fmt::format(", loss {:.4f}, {} tokens/s, {:.1f} MB, {}:{:02} to go", last.loss,
                     group_digits(static_cast<std::int64_t>(tokens / last.seconds)),
                     1e-6 * static_cast<double>(run.ledger.current(Tier::device).total()), left_s / 60,
                     left_s % 60);
}

}  // namespace

Progress::Progress(Run& run, Report& report, Reached& reached)
    : run_(run), report_(report), log_(run.options.log), last_(run.options.last_step(run.epoch)), reached_(reached)
{
}

void Progress::begin(const OptionTable& table, const Layout& layout, const std::string& description)
{
  begin_report(report_, layout, table, run_.options, run_.tokens);
  report_.json()["provenance"]["products"] = run_.arithmetic.products(run_.options.device, run_.options.precision);
  report_placement(report_, run_.options.device);
  if (!run_.messages.carrier().empty()) report_.comment(run_.messages.carrier());
  if (!description.empty()) report_.comment(description);
  const std::string lesson = report_.json()["lesson"];
  if (run_.session.ranks() == 1 && !has_launcher() && !lesson.starts_with("01_"))
    report_.comment(
        fmt::format("started without a launcher: one rank, which has no one to share with. Four ranks:\n"
                    "  source scripts/mpi_environment.sh; mpirun -np 4 build/lessons/{}",
                    lesson));
  begin_steps(report_, run_.options.architecture);
  const std::string& path = run_.options.log;
  if (run_.session.rank() == 0 && !path.empty() && !run_.options.resume && !is_stream(path)) write_file(path, "");
  log({{"run", report_.json()}});
  if (run_.options.trace.empty()) return;
  clock_ = measure_clock(run_.session);
  run_.time.record();
  run_.ledger.record();
  run_.messages.traffic().record();
}

std::optional<std::int64_t> Progress::load(const ModelOnRanks& model)
{
  const TrainingOptions& o = run_.options;
  const auto span = run_.time.span(Work::io, "reading a checkpoint");
  record_.from_scratch = !o.resume && o.initial.empty();
  if (!o.initial.empty())  // parameters only
    model.held.for_each(Access::update, [&](const Shard& shard, Stream& stream) {
      read_checkpoint(o.initial, stream, {shard.table, shard.owned, shard.parameters, {}, {}});
    });
  if (!o.resume) return std::nullopt;
  const CheckpointInfo saved = check_checkpoint(o.checkpoint, "--checkpoint=" + o.checkpoint);
  model.held.for_each(Access::write,
                      [&](const Shard& shard, Stream& stream) { read_checkpoint(o.checkpoint, stream, shard); });
  record_.first_step = made_ = reached_.settled = saved.step;
  return saved.updates;
}

std::int64_t Progress::first_step()
{
  shown_.emplace(run_.options.watch);
  if (reached_.last) note_step(*std::exchange(reached_.last, std::nullopt), seconds_by_kind(run_.time));
  return reached_.settled;
}

Progress::TimedStep::TimedStep(TimeLedger& time)
    : before(seconds_by_kind(time)), span(time.span(Work::compute, "training step"))
{
}

bool Progress::begin_step(std::int64_t step)
{
  if (step < made_) return false;
  stop_.begin_step();
  run_.messages.begin_step();
  run_.sent.clear();
  run_.receivers.clear();
  if (run_.recorder) run_.recorder->begin_step(step);
  timed_.emplace(run_.time);
  return true;
}

void Progress::end_step(StepReport measured, const HeldShards& held)
{
  run_.stream->synchronise();
  run_.messages.end_step();
  measured.seconds = timed_->clock.seconds();
  const std::map<std::string, double> before = std::move(timed_->before);
  timed_.reset();
  record_step(run_, measured, held);
  note_step(measured, before);
  stepped_ = true;
  stopped_by_ = stop_.end_step();
}

void Progress::note_step(const StepReport& measured, const std::map<std::string, double>& before)
{
  record_.steps.push_back(measured);
  report_step(report_, made_, measured);
  const nlohmann::json line = line_of(made_, measured, run_, before);
  log(line);
  nlohmann::json& steps = report_.json()["steps"];
  steps["step_s"].push_back(measured.seconds);
  for (const auto& [kind, seconds] : line["time"].items()) steps[kind + "_s"].push_back(seconds);
  ++made_;
  report_.progress(made_, last_, progress_note(measured, run_, last_ - made_));
}

void Progress::check_replicated(const Tensor& parameters) const
{
  if (is_due(run_.options.check_every) && !parameters.empty())
    check_replicas(*run_.stream, parameters, fmt::format("after step {}", made_ - 1));
}

bool Progress::validation_is_due() const
{
  const bool validated = !record_.validation.empty() && record_.validation.back().step == made_;
  return stopped_by_ == 0 && !validated && (made_ == last_ || is_due(run_.options.evaluate_every));
}

void Progress::validate(const std::function<double()>& evaluate)
{
  const auto span = run_.time.span(Work::compute, "validation");
  record_.validation.push_back({made_, evaluate()});
  report_validation(report_, record_.validation.back(), run_.options.architecture);
  log({{"step", made_}, {"validation_loss", record_.validation.back().loss}});
}

bool Progress::save_is_due() const
{
  const TrainingOptions& o = run_.options;
  return checkpoint_is_due(o, made_, last_) || (stopped_by_ != 0 && !o.checkpoint.empty());
}

void Progress::settle(const ModelOnRanks& model)
{
  const TrainingOptions& o = run_.options;
  if (made_ == o.compare)
    reached_.compared = gather_parameters(run_.config, model.owned,
                                          Communicator::world().split(model.replica, run_.session.rank()));
  reached_.settled = made_;
  if (!is_due(o.evaluate_every) && !save_is_due() && stopped_by_ == 0) return;
  enter_record(report_, record_);
  report_.write_so_far();
}

bool Progress::asked_to_stop()
{
  if (stopped_by_ != 0) return true;
  stop_.begin_step();
  stopped_by_ = stop_.end_step();
  if (stopped_by_ != 0)
    report_.comment(fmt::format("stopped by {} after step {}, in a sample", name_of_signal(stopped_by_), made_));
  return stopped_by_ != 0;
}

void Progress::log(const nlohmann::json& line)
{
  if (run_.session.rank() == 0 && !run_.options.log.empty()) log_.add(json_text(line) + "\n");
}

void Progress::save(const ModelOnRanks& model, std::int64_t updates)
{
  const auto span = run_.time.span(Work::io, "saving a checkpoint");
  const std::string& path = run_.options.checkpoint;
  const bool first = run_.session.rank() == 0;
  if (first)
    create_checkpoint(path, {.config = run_.config,
                             .step = made_,
                             .updates = updates,
                             .options = run_options(run_.options, run_.tokens)});
  in_turn(run_.session, [&] {
    if (model.replica != 0) return;
    model.owned.for_each(Access::read,
                         [&](const Shard& shard, Stream& stream) { write_checkpoint(path, stream, shard); });
  });
  if (first) commit_checkpoint(path);
}

void Progress::report_results(const ModelOnRanks& model)
{
  shown_.reset();
  const Communicator replica = Communicator::world().split(model.replica, run_.session.rank());
  record_.digest = parameter_digest(run_.config, model.owned, replica);
  report_loss(report_, record_, run_.config, run_.tokens);
  if (run_.session.ranks() > 1)
    report_.check("digest on every rank", "the same", record_.digest.substr(0, 12),
                  same_on_all_ranks(record_.digest));
  if (stopped_by_ != 0)
    report_.comment(fmt::format("stopped by {} after step {} of {}", name_of_signal(stopped_by_), made_, last_));
  if (run_.options.compare > 0 && made_ >= run_.options.compare) compare();
  report_recording(report_, run_);
}

/// Rank 0 computes the reference run while the other ranks wait.
void Progress::compare()
{
  in_turn(run_.session, [&] {
    if (run_.session.rank() != 0) return;
    const ReferenceRun reference = reference_run(run_.options, run_.tokens);
    report_deviation(report_, record_, reference,
                     deviation_of(run_.config, reached_.compared, reference.parameters), run_.options);
  });
}

/// The peak is measured on all ranks at the same time, because they share the machine as they do in a step.
void Progress::report_utilisation()
{
  const std::string& given = run_.options.peak;
  const int N = run_.session.ranks();
  double peak = 0;
  std::string source = "--peak=" + given + " a rank";
  if (given == "measured") {
    MemoryLedger not_of_the_run;
    const DeviceMemory memory{run_.device.get(), &not_of_the_run};
    const auto kernels = Arithmetic(Sums::fast, run_.options.tf32).make_kernels(memory, *run_.stream);
    gather_texts(Communicator::world(), "");  // so that all ranks begin together
    const double own = fastest_product(kernels, *run_.stream, memory, run_.options.precision);
    for (const std::string& text : gather_texts(Communicator::world(), fmt::format("{}", own)))
      peak += std::stod(text);
    source = fmt::format("the fastest {} matrix product on all ranks at once", name_of(run_.options.precision));
  } else {
    peak = N * parse_flops(given, "peak");
  }
  const std::int64_t tokens = run_.batch.global_batch * run_.batch.sequence;
  rankwise::report_utilisation(report_,
                               flop_counts(run_.config, tokens, run_.batch.sequence, run_.options.recompute_blocks),
                               mean_step_s(record_), peak, N, source);
}

void Progress::report_times()
{
  report_time(report_, record_, run_.time, run_.options);
  if (!run_.options.peak.empty()) report_utilisation();
  run_.messages.report_virtual_clock(report_);
  if (run_.options.trace.empty()) return;
  const nlohmann::json clocks = write_trace(run_.session, run_.options.trace, run_.time.events(), run_.ledger,
                                            run_.messages.traffic().events(), clock_);
  if (run_.session.rank() == 0) report_clocks(report_, clocks);
}

void Progress::tell_failure()
{
  shown_.reset();
  tell_recorded(run_);
}

int Progress::finish()
{
  constexpr int ended_by_signal = 128;  // as shells report it
  int status = exit_failure;
  try {
    status = report_.finish();
    log_.close();
    if (run_.session.rank() == 0 && !run_.options.html.empty()) write_page(run_.options.html, report_.json());
  } catch (const Error& error) {  // a signal ended the wait for the reader of a pipe
    if (noted_request() == 0) throw;
    print_text(stderr, fmt::format("error: {}\n", error.what()));
    return ended_by_signal + noted_request();
  }
  return stopped_by_ != 0 && status == exit_success ? ended_by_signal + stopped_by_ : status;
}

}  // namespace rankwise
