#include "lessons/frame/run.hpp"

#include <cmath>
#include <omp.h>

#include "common/cuda/devices.hpp"

namespace rankwise {

namespace {

/// Sets the number of threads, which has to happen before the first buffer is filled.
const LessonOptions& with_threads(const LessonOptions& options)
{
  omp_set_num_threads(options.threads);
  return options;
}

}  // namespace

Run::Run(const LessonOptions& o, const Session& s, const BatchShape& b, const ActivationShape& a)
    : options(with_threads(o)),
      session(s),
      config(o.config()),
      batch(b),
      shape(a),
      ledger(o.memory_limit.value),
      device(make_device(o.device)),
      stream(device->make_stream()),
      memory{device.get(), &ledger},
      arithmetic(o.arithmetic, o.tf32),
      messages(o.messages, memory, *stream, time),
      kernels(arithmetic.make_kernels(memory, *stream)),
      tokens(o.open_data()),
      loader(tokens.train, o.loader_options()),
      validation(tokens.validation, o.loader_options()),
      epoch(o.sequences_of_epoch(tokens)),
      schedule(o.schedule_over(epoch))
{
}

MicroBatch Run::load(const Activations& kept, Range sequences, std::int64_t step)
{
  const auto reading = time.span(Work::io, "reading tokens");
  loader.load(step, sequences, host_batch_);
  return place(kept, *stream, host_batch_, sequences, step);
}

MicroBatch Run::load_validation(const Activations& kept, Range windows)
{
  validation.load_in_order(intersect(windows, {0, validation.windows()}), host_batch_);
  pad(host_batch_, windows.count);
  MicroBatch micro_batch = place(kept, *stream, host_batch_, {0, windows.count}, 0);
  micro_batch.training = false;
  return micro_batch;
}

LossSum Run::validate(const Activations& kept, Part part, const std::function<LossSum(const MicroBatch&)>& forward)
{
  const std::int64_t B = batch.micro_batch;
  LossSum loss;
  for (std::int64_t first = 0; first < validation.windows(); first += part.count * B)
    loss += forward(load_validation(kept, {first + part.index * B, B}));
  return loss;
}

void Run::charge(std::int64_t unit, int passes, const char* what)
{
  VirtualClock* const clock = messages.clock();
  if (clock == nullptr) return;
  const double flops = unit_flops(config, unit, shape.rows(), batch.sequence) / shape.part.count;
  clock->charge_compute(passes * std::llround(flops), what);
}

Traffic Run::sent_so_far(const std::string& axis) const
{
  Traffic all;
  for (const auto& [group, collectives] : messages.traffic().all())
    if (group == axis || group.starts_with(axis + " ")) all += messages.traffic().of(group);
  return all;
}

Run::Counted::Counted(Run& run, std::string axis, bool left_out)
    : run_(run), axis_(std::move(axis)), left_out_(left_out), before_(run.sent_so_far(axis_))
{
}

Run::Counted::~Counted()
{
  Traffic& sent = run_.sent[axis_];
  const Traffic meanwhile = run_.sent_so_far(axis_) - before_;
  if (left_out_)
    sent = sent - meanwhile;
  else
    sent += meanwhile;
}

}  // namespace rankwise
