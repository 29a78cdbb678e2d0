#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "common/files/descriptor.hpp"
#include "common/memory/memory_ledger.hpp"
#include "common/program/session.hpp"
#include "lessons/parallel/offload/block_file.hpp"
#include "lessons/parallel/offload/offload_options.hpp"

/// @file
/// Checks that host and disk suffice for the offloaded state, and measures the disk's bandwidth.

namespace rankwise {

/// Refuses a run whose ranks need more memory than memory_for_each() of them.
/// @param planned   bytes of the host tier, by category.
/// @param device    bytes of the device tier that are memory of the host too; 0 with a GPU.
/// @param ranks     on this machine.
/// @param remedy    advice to the user, one sentence.
/// @throws UserError  with the table of categories.
void check_host_capacity(const CategoryBytes& planned, std::int64_t device, int ranks, const std::string& remedy);

/// Checks that the directory of `--tier=disk:DIR` exists, is not used by another job, has enough space, and lets this
/// rank create a file; and locks it against other jobs until the returned object is destroyed. Each rank calls this
/// before the first message. The lowest rank of each machine holds the lock, which ends with its process. No file is
/// left in the directory.
///
/// The directory is on a local disk of each machine, not on one that machines share.
/// @param path        as the user gave it after "disk:".
/// @param file_bytes  bytes of this rank's file.
/// @param rank        of the job.
/// @param here        this rank among those on its machine.
/// @throws UserError  with the request, the reason and a remedy.
Descriptor lock_directory(const std::string& path, std::int64_t file_bytes, int rank, RankOf here);

/// Refuses a run that does not fit on the host or the disk, and locks the directory for this job. A dry run only has to
/// find the directory.
/// @param most  peak bytes of this rank, by tier.
/// @throws UserError.
void prepare(const ZeroOffloadOptions& options, const TierBytes& most, RankOf rank);
/// The same for rank r of N.
template <std::derived_from<ZeroOffloadOptions> Options>
void prepare(const Options& options, RankOf rank)
{
  prepare(options, costs(options, rank).most, rank);
}

/// Measures the disk with the file that the run will use. All blocks are written once without timing, since the
/// first write to reserved space takes longer. Then, timed, one thread writes 3/8 of them again while another one
/// reads the rest, which is about the mix of a step. No block counts as written afterwards. Ranks that share a disk
/// share its bandwidth, so all of them measure at the same time, after a barrier.
/// @param file    a new one.
/// @param blocks  number of blocks to use, 1 .. B.
/// @param coming  (S), aligned to disk_alignment, to read into.
/// @param going   (S), aligned likewise, to write from; filled with incompressible data.
/// @return        GB/s of this rank while nothing is computed, reads plus writes.
/// @throws Error  as the file does.
double measure_disk(BlockFile& file, std::int64_t blocks, std::span<std::byte> coming, std::span<std::byte> going);

}  // namespace rankwise
