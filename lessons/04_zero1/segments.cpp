#include "lessons/04_zero1/segments.hpp"

#include <algorithm>

namespace rankwise {

std::vector<Segment> make_segments(const std::vector<Bucket>& buckets, int ranks)
{
  // BEGIN EXERCISE 04.1 points=10 "The segment map: for each bucket, in the order given, one segment for each rank, by "
  //     "rank. The elements of a bucket are cut as the collectives cut them, by Partition; a segment says where its "
  //     "elements lie in the flat vector of the whole table, and who owns them."
  std::vector<Segment> segments;
  for (const Bucket& bucket : buckets) {
    const Partition parts(bucket.elements.count, ranks);
    for (int rank = 0; rank < ranks; ++rank) {
      const Range part = parts.segment(rank);
      segments.push_back({{bucket.elements.first + part.first, part.count}, rank});
    }
  }
  return segments;
  // END EXERCISE
}

std::vector<Range> segments_of(int rank, const std::vector<Segment>& segments)
{
  std::vector<Range> own;
  for (const Segment& segment : segments)
    if (segment.owner == rank) own.push_back(segment.elements);
  return own;
}

std::int64_t elements_of(const std::vector<Range>& ranges)
{
  std::int64_t sum = 0;
  for (const Range& range : ranges) sum += range.count;
  return sum;
}

}  // namespace rankwise
