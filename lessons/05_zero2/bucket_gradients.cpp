#include "lessons/05_zero2/bucket_gradients.hpp"

#include <algorithm>
#include <utility>

namespace rankwise {

BucketGradients::BucketGradients(const DeviceMemory& memory, Stream& stream, const ParameterTable& table,
                                 std::vector<Bucket> buckets, const GradientLayout& layout)
    : memory_(memory),
      stream_(stream),
      table_(table),
      buckets_(std::move(buckets)),
      layout_(layout),
      flat_(buckets_.size())
{
  tensors_.branches.resize(static_cast<std::size_t>(table.units().count - 2));
}

std::size_t BucketGradients::bucket_of(std::int64_t unit) const
{
  const auto found = std::find_if(buckets_.begin(), buckets_.end(),
                                  [&](const Bucket& bucket) { return bucket.units.contains(unit); });
  check(found != buckets_.end(), "a unit is in no bucket");
  return static_cast<std::size_t>(found - buckets_.begin());
}

Tensor BucketGradients::room_of(std::int64_t unit)
{
  const std::size_t b = bucket_of(unit);
  const Range all = buckets_[b].elements, own = table_.unit_elements(static_cast<int>(unit));
  if (flat_[b].tensor().empty()) {
    flat_[b] = Buffer(memory_, Category::gradients, layout_.type, {all.count}, "gradients of a bucket");
    stream_.zero(flat_[b].tensor());
  }
  return flat_[b].tensor().slice({own.first - all.first, own.count});
}

void BucketGradients::make_room(std::int64_t unit)
{
  const std::int64_t head = table_.units().end() - 1;
  if (unit == 0) tensors_.embedding = embedding_tensors(table_, room_of(0));
  if (unit > 0 && unit < head)
    tensors_.branches[static_cast<std::size_t>(unit - 1)] =
        branch_tensors(table_, static_cast<int>(unit), room_of(unit));
  if (unit < head) return;
  make_room(0);
  Tensor token = tensors_.embedding.token;
  if (!layout_.tied.empty()) {
    tied_ = Buffer(memory_, Category::gradients, layout_.type, {layout_.tied.count}, "tied gradients");
    stream_.zero(tied_.tensor());
    token = tied_.tensor().reshaped(token.shape());
  }
  tensors_.head = head_tensors(table_, static_cast<int>(unit), room_of(unit), token);
}

std::vector<Tensor> BucketGradients::of(std::size_t bucket) const
{
  return of(bucket, buckets_[bucket].elements);
}

std::vector<Tensor> BucketGradients::of(std::size_t bucket, Range part) const
{
  std::vector<Tensor> gradients{
      flat_[bucket].tensor().slice({part.first - buckets_[bucket].elements.first, part.count})};
  const Range tied = intersect(part, layout_.tied);
  if (!tied.empty()) gradients.push_back(tied_.tensor().slice({tied.first - layout_.tied.first, tied.count}));
  return gradients;
}

void BucketGradients::free(std::size_t bucket)
{
  flat_[bucket] = Buffer();
  if (bucket == bucket_of(0)) tied_ = Buffer();
}

std::int64_t alive_bytes(const StepPlan& plan)
{
  const std::vector<Bucket> buckets = make_buckets(ParameterTable(plan.config), plan.gradients, plan.bucket_bytes);
  const auto elements = [&](std::size_t b) { return buckets[b].elements.count; };
  const std::size_t last = buckets.size() - 1;
  std::int64_t most = elements(last);
  for (std::size_t b = 0; b < last; ++b)
    most = std::max(most, elements(b) + elements(b + 1) + (b + 1 < last ? elements(last) : 0));
  return bytes_of(plan.gradients) * (most + sums_of(plan).tied.count);
}

}  // namespace rankwise
