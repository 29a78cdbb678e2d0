#include "lessons/frame/run.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "common/cuda/devices.hpp"
#include "common/messages/rehearsal/rehearsal.hpp"
#include "gpt2/reference_run.hpp"

namespace rankwise {

namespace {

/// Tokens that are all the same, without memory.
class SameTokens final : public TokenSource {
 public:
  explicit SameTokens(std::int64_t size) : size_(size) {}
  std::int64_t size() const override { return size_; }
  void read(std::int64_t, std::span<Token> out) const override { std::ranges::fill(out, 0); }

 private:
  std::int64_t size_;
};

/// The data of a rehearsal: as many tokens as a step and a window of validation need. A BERT's pairs are lines of a
/// real text.
Tokens rehearsed_tokens(const LessonOptions& options, const BatchShape& batch)
{
  if (options.architecture == Architecture::bert) return options.open_data();
  Tokens tokens;
  tokens.train = std::make_shared<SameTokens>(batch.global_batch * batch.sequence + 1);
  tokens.validation = std::make_shared<SameTokens>(batch.sequence + 1);
  tokens.vocabulary = options.config().vocabulary;
  return tokens;
}

}  // namespace

Run::Run(const LessonOptions& o, const Session& s, const Division& division)
    : options(o),
      session(s),
      config(o.config()),
      batch(division.batch),
      shape(division.shape),
      ledger(o.memory_limit.value),
      device(Rehearsal::current() ? make_rehearsed_device(o.device) : make_device(o.device)),
      stream(device->make_stream()),
      memory{device.get(), &ledger},
      arithmetic(o.arithmetic, o.tf32),
      messages(o.messages, memory, *stream, time),
      kernels(make_kernels(memory, *stream)),
      tokens(Rehearsal::current() ? rehearsed_tokens(o, batch) : o.open_data()),
      loader(tokens.train, o.loader_options()),
      validation(tokens.validation, o.loader_options()),
      epoch(o.sequences_of_epoch(tokens)),
      schedule(o.schedule_over(epoch))
{
  if (!o.records() || Rehearsal::current()) return;
  record = new_record(o, s.ranks());
  recorder = std::make_unique<Recorder>(*stream, config, record.global_batch, batch.sequence, record.exact,
                                        s.rank(), o.record_values);
  kernels->record_in(*recorder);
}

Kernels Run::make_kernels(const DeviceMemory& where, Stream& queue) const
{
  return Rehearsal::current() ? make_rehearsed_kernels() : arithmetic.make_kernels(where, queue);
}

MicroBatch Run::load(const Activations& kept, Range sequences, std::int64_t step)
{
  return load(kept, sequences, step, {0, batch.sequence});
}

MicroBatch Run::load(const Activations& kept, Range sequences, std::int64_t step, Range positions)
{
  const auto reading = time.span(Work::io, "reading tokens");
  loader.load(step, intersect(sequences, {0, batch.global_batch}), host_batch_);
  pad(host_batch_, sequences.count);
  return place_tokens(kept, sequences, step, positions);
}

MicroBatch Run::load_validation(const Activations& kept, Range windows)
{
  return load_validation(kept, windows, {0, batch.sequence});
}

MicroBatch Run::load_validation(const Activations& kept, Range windows, Range positions)
{
  validation.load_in_order(intersect(windows, {0, validation.windows()}), host_batch_);
  pad(host_batch_, windows.count);
  MicroBatch micro_batch = place_tokens(kept, {0, windows.count}, 0, positions);
  micro_batch.training = false;
  return micro_batch;
}

MicroBatch Run::load_text(const Activations& kept, std::span<const Token> text, std::int64_t sequences,
                          Range positions)
{
  const std::span<const Token> window = text.last(std::min(text.size(), static_cast<std::size_t>(batch.sequence)));
  host_batch_ = {1, batch.sequence, {window.begin(), window.end()}, {}, 0};
  pad(host_batch_, sequences);
  MicroBatch micro_batch = place_tokens(kept, {0, sequences}, 0, positions);
  micro_batch.training = false;
  return micro_batch;
}

MicroBatch Run::place_tokens(const Activations& kept, Range sequences, std::int64_t step, Range positions)
{
  const bool whole = positions.count == batch.sequence;
  if (!whole) host_part_ = tokens_of(host_batch_, positions);
  MicroBatch placed = place(kept, *stream, whole ? host_batch_ : host_part_, sequences, step);
  placed.rows.tokens = positions;
  placed.sixteenths = SumOrder::tokens(positions, batch.sequence).leaves();
  return placed;
}

LossSum Run::validate(const Activations& kept, Part part, const std::function<LossSum(const MicroBatch&)>& forward)
{
  return validate(part, [&](Range windows) { return forward(load_validation(kept, windows)); });
}

LossSum Run::validate(Part part, const std::function<LossSum(Range windows)>& forward) const
{
  const std::int64_t B = batch.micro_batch;
  LossSum loss;
  for (std::int64_t first = 0; first < validation.windows(); first += part.count * B)
    loss += forward({first + part.index * B, B});
  return loss;
}

void Run::charge(std::int64_t unit, int passes, const char* what, SourceLocation where)
{
  const double flops = unit_flops(config, unit, shape.rows(), batch.sequence) / shape.part.count;
  advance_clock(passes * std::llround(flops), what);
  time.piece(fmt::format("{} pass of unit {}", what, unit), where);
}

void Run::charge_flops(std::int64_t flops, const char* what, SourceLocation where)
{
  advance_clock(flops, what);
  time.piece(what, where);
}

void Run::advance_clock(std::int64_t flops, const char* what)
{
  if (VirtualClock* const clock = messages.clock()) clock->charge_compute(flops, what);
}

Traffic Run::sent_so_far(const std::string& axis) const
{
  Traffic all;
  for (const auto& [group, collectives] : messages.traffic().all())
    if (is_of_axis(group, axis)) all += messages.traffic().of(group);
  return all;
}

Run::Counted::Counted(Run& run, std::string axis, bool left_out)
    : run_(run),
      axis_(std::move(axis)),
      left_out_(left_out),
      before_(run.sent_so_far(axis_)),
      before_to_(sent_to_ranks(run.messages.traffic(), axis_, run.session.ranks()))
{
  run_.messages.traffic().count_axis(axis_, left_out_ ? -1 : 1);
}

Run::Counted::~Counted()
{
  run_.messages.traffic().count_axis(axis_, left_out_ ? 1 : -1);
  Traffic& counted = run_.sent[axis_];
  const Traffic meanwhile = run_.sent_so_far(axis_) - before_;
  if (left_out_)
    counted = counted - meanwhile;
  else
    counted += meanwhile;
  const std::vector<std::int64_t> now = sent_to_ranks(run_.messages.traffic(), axis_, run_.session.ranks());
  std::vector<std::int64_t>& to = run_.receivers[axis_];
  to.resize(now.size());
  for (std::size_t r = 0; r < now.size(); ++r) to[r] += (left_out_ ? -1 : 1) * (now[r] - before_to_[r]);
}

}  // namespace rankwise
