#include "lessons/frame/instruments/recording.hpp"

#include <cstdio>
#include <cstring>
#include <span>

#include <fmt/format.h>

#include "common/base/json.hpp"
#include "common/base/text.hpp"
#include "common/messages/agreement.hpp"
#include "common/program/in_turn.hpp"
#include "gpt2/reference_run.hpp"
#include "lessons/frame/instruments/first_difference.hpp"

namespace rankwise {

void check_recording(const LessonOptions& options)
{
  if (options.check_against_reference && (options.resume || !options.initial.empty()))
    throw UserError("--check-against=reference with a checkpoint to begin from.",
                    "The reference run begins with the initial values of --seed.");
  if (options.elastic && options.records())
    throw UserError("--record with --elastic.",
                    "What a rank has noted is lost when it dies. Leave one of them out.");
  check_patterns("record-values", options.record_values, record_names(options.config()));
}

namespace {

/// The objects of all ranks, by rank; on rank 0 only. All ranks make this call.
template <class T>
std::vector<std::vector<T>> gather_on_rank_0(const Session& session, const std::vector<T>& own)
{
  const std::string bytes(reinterpret_cast<const char*>(own.data()), own.size() * sizeof(T));
  std::vector<std::vector<T>> all;
  for (const std::string& text : gather_texts(Communicator::world(), bytes)) {
    if (session.rank() != 0) return all;
    all.emplace_back(text.size() / sizeof(T));
    if (!text.empty()) std::memcpy(static_cast<void*>(all.back().data()), text.data(), text.size());
  }
  return all;
}

/// The values of all ranks, on rank 0.
std::vector<RecordedValues> gather_values(const Session& session, const std::vector<RecordedValues>& own)
{
  std::vector<RecordEntry> entries;
  std::vector<std::int64_t> counts;
  std::vector<float> numbers;
  for (const RecordedValues& part : own) {
    entries.push_back(part.entry);
    counts.push_back(std::ssize(part.values));
    numbers.insert(numbers.end(), part.values.begin(), part.values.end());
  }
  const auto all_entries = gather_on_rank_0(session, entries);
  const auto all_counts = gather_on_rank_0(session, counts);
  const auto all_numbers = gather_on_rank_0(session, numbers);
  std::vector<RecordedValues> all;
  for (std::size_t r = 0; r < all_entries.size(); ++r) {
    auto begin = all_numbers[r].begin();
    for (std::size_t i = 0; i < all_entries[r].size(); ++i) {
      const auto end = begin + all_counts[r][i];
      all.push_back({all_entries[r][i], std::vector(begin, end)});
      begin = end;
    }
  }
  return all;
}

/// The record of the reference run.
Record reference_record(const Run& run)
{
  TrainingOptions options = run.options;
  options.compare = run.record.entries.back().step + 1;
  Record record;
  reference_run(options, run.tokens, run.batch.micro_batch, &record);
  return record;
}

}  // namespace

void record_sums(Run& run, const HeldShards& held, const std::vector<Tensor>& gradients)
{
  std::size_t number = 0;
  held.for_each(Access::read, [&](const Shard& shard, Stream&) {
    run.recorder->shard(StepPhase::sums, State::parameter, shard.table, shard.owned, gradients[number++]);
  });
}

void record_step(Run& run, const StepReport& measured, const HeldShards& held)
{
  if (!run.recorder) return;
  Recorder& notes = *run.recorder;
  notes.number("loss", measured.loss);
  notes.number("gradient norm", measured.gradient_norm);
  notes.number("learning rate", measured.learning_rate);
  held.for_each(Access::read, [&](const Shard& shard, Stream&) {
    notes.shard(StepPhase::update, State::first_moment, shard.table, shard.owned, shard.first_moments);
    notes.shard(StepPhase::update, State::second_moment, shard.table, shard.owned, shard.second_moments);
    notes.shard(StepPhase::update, State::parameter, shard.table, shard.owned, shard.parameters);
  });
  std::vector<RecordEntry>& entries = run.record.entries;
  const std::size_t before = entries.size();
  for (const std::vector<RecordEntry>& of_rank : gather_on_rank_0(run.session, notes.take_entries()))
    entries.insert(entries.end(), of_rank.begin(), of_rank.end());
  std::vector<RecordedValues> values;
  if (!run.options.record_values.empty()) values = gather_values(run.session, notes.take_values());
  // All ranks wait for rank 0, so that an error in the next step does not end it while it writes.
  const std::string& path = run.options.record;
  if (!path.empty())
    in_turn(run.session, [&] {
      if (run.session.rank() == 0)
        write_step(path, run.record, run.recorded_steps == 0, std::span(entries).subspan(before), values);
    });
  ++run.recorded_steps;
}

void tell_recorded(const Run& run)
{
  if (run.session.rank() != 0 || run.recorded_steps == 0 || run.options.record.empty()) return;
  print_text(stderr,
             fmt::format("{} has what was noted in the {} before: compare_records reads it.\n", run.options.record,
                         run.recorded_steps == 1 ? "step" : fmt::format("{} steps", run.recorded_steps)));
}

void report_recording(Report& report, Run& run)
{
  if (!run.recorder) return;
  if (!run.options.check_against_reference) return;
  in_turn(run.session, [&] {
    if (run.record.entries.empty()) return;  // one of the other ranks, or a run without steps
    const Comparison found = compare(reference_record(run), run.record);
    report.json()["first_difference"] = found.text;
    report.check("tensors that differ from the reference run", "none", found.step < 0 ? "none" : found.text,
                 found.step < 0);
  });
}

}  // namespace rankwise
