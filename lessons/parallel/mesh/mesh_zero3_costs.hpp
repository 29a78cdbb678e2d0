#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/messages/mesh.hpp"
#include "common/program/report.hpp"
#include "lessons/frame/costs.hpp"
#include "lessons/parallel/mesh/mesh_zero3_options.hpp"
#include "lessons/parallel/offload/capacity.hpp"
#include "lessons/parallel/offload/offload.hpp"

/// @file
/// Memory and traffic of a mesh whose replicas shard parameters too, computed from the sizes alone.

namespace rankwise {

/// FSDP units of one tensor-parallel rank's table, and the messages among the ranks that share a replica.
StepPlan step_plan(const MeshZeroOptions& options, RankOf rank);
/// When units are gathered and freed in the forward and backward pass of a micro-batch; nowhere with `--zero=2`.
std::vector<GatherStep> gathers(const MeshZeroOptions& options, RankOf rank);
/// The state of rank r of N: where it is stored, how it moves, and which elements count in the norm.
OffloadPlan offload_plan(const MeshZeroOptions& options, RankOf rank);

/// Allocates the message buffers of all axes in advance. The queue's thread must not grow one: that frees GPU memory,
/// which waits for messages along tp, whose other rank may wait for this thread.
void reserve_scratch(const MeshZeroOptions& options, RankOf rank, Mesh& mesh);

/// Bytes that a rank sends to the same shard of other replicas in a step: one all-reduce for each of its shards
/// after every micro-batch.
/// @param plan      of the rank that sends.
/// @param topology  of the replicas.
/// @param replica   of the rank that sends.
Traffic hybrid_traffic(const OffloadPlan& plan, const Topology& topology, int replica);

/// Memory and traffic of rank r of N.
///
///     model state       16 P_t / s bytes, P_t = P / t plus (1 - 1/t) of the replicated parameters; with --zero=2
///                       4 P_t + 12 P_t / s; less what is offloaded; plus the units that are gathered
///     activations       of lesson 08
///     sent, tp          tensor_parallel_traffic() of lesson 08
///     sent, shard       (s-1)/s of all gathered units and of the gradients, per micro-batch
///     sent, replicas    2 (dp-s)/dp of P_t / s gradients, per micro-batch
Costs costs(const MeshZeroOptions& options, RankOf rank);

/// Options with which the run would fit into @p bytes of the device, as a sentence.
std::string suggest_options(const MeshZeroOptions& options, int N, std::int64_t bytes);

/// Prints bytes by tier and link if something is offloaded, which rows and columns rank 0 has, the FSDP units and
/// when they are gathered.
void report_plan(Report& report, const MeshZeroOptions& options, int N);

}  // namespace rankwise
