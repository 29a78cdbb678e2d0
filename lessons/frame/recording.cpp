#include "lessons/frame/recording.hpp"

#include <cstring>

#include <fmt/format.h>

#include "common/base/text.hpp"
#include "common/messages/agreement.hpp"
#include "common/program/in_turn.hpp"
#include "gpt2/reference_run.hpp"
#include "lessons/frame/first_difference.hpp"

namespace rankwise {

void check_recording(const LessonOptions& options)
{
  if (!options.record_values.empty() && options.record.empty())
    throw UserError(fmt::format("--record-values={} without --record.", options.record_values),
                    "The values are part of the record: add --record=FILE.");
  if (options.check_against_reference && (options.resume || !options.initial.empty()))
    throw UserError("--check-against=reference with a checkpoint to begin from.",
                    "The reference run begins with the initial values of --seed.");
  if (options.elastic && options.records())
    throw UserError("--record with --elastic.",
                    "What a rank has noted is lost when it dies. Leave one of them out.");
}

namespace {

/// Bytes of objects, as text.
template <class T>
std::string bytes_of_all(const std::vector<T>& objects)
{
  return {reinterpret_cast<const char*>(objects.data()), objects.size() * sizeof(T)};
}

template <class T>
std::vector<T> objects_of(const std::string& bytes)
{
  std::vector<T> objects(bytes.size() / sizeof(T));
  if (!bytes.empty()) std::memcpy(static_cast<void*>(objects.data()), bytes.data(), bytes.size());
  return objects;
}

/// Adds the values of all ranks to a record.
void gather_values(Record& record, const std::vector<RecordedValues>& own)
{
  std::vector<RecordEntry> entries;
  std::vector<std::int64_t> counts;
  std::vector<float> numbers;
  for (const RecordedValues& part : own) {
    entries.push_back(part.entry);
    counts.push_back(std::ssize(part.values));
    numbers.insert(numbers.end(), part.values.begin(), part.values.end());
  }
  const Communicator world = Communicator::world();
  const std::vector<std::string> all_entries = gather_texts(world, bytes_of_all(entries)),
                                 all_counts = gather_texts(world, bytes_of_all(counts)),
                                 all_numbers = gather_texts(world, bytes_of_all(numbers));
  for (std::size_t r = 0; r < all_entries.size(); ++r) {
    const auto of_rank = objects_of<RecordEntry>(all_entries[r]);
    const auto sizes = objects_of<std::int64_t>(all_counts[r]);
    const auto values = objects_of<float>(all_numbers[r]);
    for (std::size_t i = 0, first = 0; i < of_rank.size(); ++i) {
      const auto begin = values.begin() + static_cast<std::ptrdiff_t>(first);
      record.values.push_back({of_rank[i], std::vector(begin, begin + sizes[i])});
      first += static_cast<std::size_t>(sizes[i]);
    }
  }
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
  for (const std::string& bytes : gather_texts(Communicator::world(), bytes_of_all(notes.take_entries()))) {
    const auto entries = objects_of<RecordEntry>(bytes);
    run.record.entries.insert(run.record.entries.end(), entries.begin(), entries.end());
  }
  if (!run.options.record_values.empty()) gather_values(run.record, notes.take_values());
}

void report_recording(Report& report, Run& run)
{
  if (!run.recorder) return;
  if (run.session.rank() == 0 && !run.options.record.empty()) write_record(run.options.record, run.record);
  if (!run.options.check_against_reference || run.record.entries.empty()) return;
  in_turn(run.session, [&] {
    if (run.session.rank() != 0) return;
    const Comparison found = compare(reference_record(run), run.record);
    report.json()["first_difference"] = found.text;
    report.check("tensors that differ from the reference run", "none", found.step < 0 ? "none" : found.text,
                 found.step < 0);
  });
}

}  // namespace rankwise
