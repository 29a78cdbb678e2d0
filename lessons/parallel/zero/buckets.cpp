#include "lessons/parallel/zero/buckets.hpp"

#include <fmt/format.h>

#include "common/base/error.hpp"

namespace rankwise {

void check_bucket(std::int64_t bytes)
{
  if (bytes <= 0)
    throw UserError(fmt::format("--bucket={} is not a valid size of a bucket.", bytes),
                    "Gradients are sent when a bucket is full. Use --bucket=25MB.");
}

std::vector<Bucket> make_buckets(const ParameterTable& table, DType type, std::int64_t bytes)
{
  // BEGIN EXERCISE 03.2
  std::vector<Bucket> buckets;
  bool full = true;
  for (std::int64_t unit = table.units().end(); unit-- > table.units().first;) {
    const Range elements = table.unit_elements(static_cast<int>(unit));
    if (full) buckets.push_back({{unit + 1, 0}, {elements.end(), 0}});
    Bucket& bucket = buckets.back();
    bucket.units = {unit, bucket.units.count + 1};
    bucket.elements = {elements.first, bucket.elements.count + elements.count};
    full = bucket.elements.count * bytes_of(type) >= bytes;
  }
  return buckets;
  // END EXERCISE
}

std::vector<Range> pieces_of(const ParameterTable& table, DType type, Strategy strategy, std::int64_t bytes)
{
  if (strategy == Strategy::flat) return {{0, table.elements()}};
  std::vector<Range> pieces;
  if (strategy == Strategy::per_tensor)
    for (const Parameter& p : table.entries()) pieces.push_back(p.elements);
  else
    for (const Bucket& bucket : make_buckets(table, type, bytes)) pieces.push_back(bucket.elements);
  return pieces;
}

}  // namespace rankwise
