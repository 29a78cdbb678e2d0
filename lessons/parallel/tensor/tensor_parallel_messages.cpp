#include "lessons/parallel/tensor/tensor_parallel_messages.hpp"

namespace rankwise {

TensorParallelMessages::TensorParallelMessages(Group& group, const ActivationShape& shape, std::int64_t channels,
                                               const Workspace& work, const Kernels& kernels, TimeLedger& time)
    : group_(group), shape_(shape), channels_(channels), work_(work), kernels_(kernels), time_(time)
{
  const auto make = [&](DType type, const Shape& extents, const char* what) {
    return Buffer(group.memory(), Category::communication, type, extents, what);
  };
  if (divides_rows()) rows_ = make(shape.type, {shape.rows(), channels}, "rows in the order of messages");
  if (shape.part.count > 1)
    numbers_ = make(accumulator_of(shape.type), {shape.part.count, shape.rows()}, "numbers of all ranks");
}

std::int64_t TensorParallelMessages::bytes(const ActivationShape& shape, std::int64_t channels)
{
  const std::int64_t rows = shape.tokens.count > 1 ? bytes_of(shape.type) * shape.rows() * channels : 0;
  const std::int64_t numbers =
      shape.part.count > 1 ? bytes_of(accumulator_of(shape.type)) * shape.part.count * shape.rows() : 0;
  return rows + numbers;
}

Tensor TensorParallelMessages::own_rows() const
{
  const std::int64_t count = shape_.shared_rows() * channels_;
  return rows_.tensor().slice({count * shape_.tokens.index, count}).reshaped({shape_.shared_rows(), channels_});
}

Tensor TensorParallelMessages::own_normalised(const Tensor& kept) const
{
  return divides_rows() && !shape_.regather ? own_rows() : kept;
}

/// Calls copy(run in @p rows, run in the message) for each run of adjacent rows, one a rank and sequence.
template <class Copy>
void TensorParallelMessages::for_each_run(const Tensor& rows, Copy&& copy) const
{
  const std::int64_t parts = shape_.tokens.count, run = shape_.T / parts * channels_;
  for (std::int64_t part = 0; part < parts; ++part)
    for (std::int64_t b = 0; b < shape_.B; ++b)
      copy(rows.slice({(b * parts + part) * run, run}), rows_.tensor().slice({(part * shape_.B + b) * run, run}));
}

Tensor TensorParallelMessages::sum(const Tensor& partial)
{
  const auto span = time_.span(Work::exposed, "summing partial sums");
  // Without sequence parallelism one all-reduce. With it a reduce-scatter, whose shard r holds the rows of rank r.
  if (!divides_rows()) {
    all_reduce_sum(partial, group_);
    return partial;
  }
  for_each_run(partial, [&](const Tensor& row, const Tensor& message) { group_.compute().copy(message, row); });
  reduce_scatter_sum(rows_.tensor(), group_);
  return own_rows();
}

Tensor TensorParallelMessages::gather(const Tensor& own, const Tensor& all)
{
  if (!divides_rows()) return own;
  const auto span = time_.span(Work::exposed, "gathering rows");
  if (own.raw() != own_rows().raw()) group_.compute().copy(own_rows(), own);
  all_gather(rows_.tensor(), group_);
  for_each_run(all, [&](const Tensor& row, const Tensor& message) { group_.compute().copy(row, message); });
  return all;
}

Tensor TensorParallelMessages::own_of(const Tensor& all)
{
  if (!divides_rows()) return all;
  const std::int64_t parts = shape_.tokens.count, run = shape_.T / parts * channels_;
  for (std::int64_t b = 0; b < shape_.B; ++b)
    group_.compute().copy(own_rows().slice({b * run, run}),
                          all.slice({(b * parts + shape_.tokens.index) * run, run}));
  return own_rows();
}

void TensorParallelMessages::largest(const Tensor& values)
{
  if (group_.ranks() == 1) return;
  const auto span = time_.span(Work::exposed, "the largest logits");
  const auto of_part = [&](std::int64_t part) {
    return numbers_.tensor().slice({part * values.elements(), values.elements()});
  };
  // A maximum is not a sum, so the numbers of all ranks are gathered, (t, R), and compared on each.
  group_.compute().copy(of_part(group_.rank()), values);
  all_gather(numbers_.tensor(), group_);
  for (int part = 0; part < group_.ranks(); ++part) kernels_->maximum(values, of_part(part));
}

void TensorParallelMessages::sum_numbers(const Tensor& values)
{
  const auto span = time_.span(Work::exposed, "summing numbers of rows");
  all_reduce_sum(values, group_);
}

}  // namespace rankwise
