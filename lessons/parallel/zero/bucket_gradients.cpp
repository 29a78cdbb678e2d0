#include "lessons/parallel/zero/bucket_gradients.hpp"

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
}

Tensor BucketGradients::buffer_of(Range elements)
{
  // BEGIN EXERCISE 05.3
  if (elements.empty()) return {};
  const auto bucket = std::find_if(buckets_.begin(), buckets_.end(), [&](const Bucket& candidate) {
    return candidate.elements.contains(elements.first);
  });
  check(bucket != buckets_.end(), "elements are in no bucket");
  const Range all = bucket->elements;
  Buffer& flat = flat_[static_cast<std::size_t>(bucket - buckets_.begin())];
  if (flat.tensor().empty()) {
    flat = Buffer(memory_, Category::gradients, layout_.type, {all.count}, "gradients of a bucket");
    stream_.zero(flat.tensor());
  }
  return flat.tensor().slice({elements.first - all.first, elements.count});
  // END EXERCISE
}

std::vector<Tensor> BucketGradients::allocate(std::int64_t unit)
{
  const auto number = static_cast<int>(unit);
  return unit_tensors(table_, number, buffer_of(table_.unit_elements(number)), buffer_of(table_.replicated()));
}

Tensor BucketGradients::tied_to(const Tensor& tied)
{
  if (layout_.tied.empty()) return tied;
  tied_ = Buffer(memory_, Category::gradients, layout_.type, tied.shape(), "second gradients of a tied tensor");
  stream_.zero(tied_.tensor());
  return tied_.tensor();
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
  if (!intersect(buckets_[bucket].elements, layout_.tied).empty()) tied_ = Buffer();
}

std::int64_t alive_bytes(const StepPlan& plan)
{
  const auto stays = [&](const Bucket& bucket) { return bucket.units.contains(0) || bucket.units.empty(); };
  std::int64_t stay = 0, most = 0, neighbour = 0;
  for (const Bucket& bucket : plan.buckets)
    if (stays(bucket)) stay += bucket.elements.count;
  for (const Bucket& bucket : plan.buckets) {
    if (stays(bucket)) continue;
    most = std::max(most, neighbour + bucket.elements.count);
    neighbour = bucket.elements.count;
  }
  return bytes_of(plan.gradients) * (stay + most + sums_of(plan).tied.count);
}

}  // namespace rankwise
