-- What `\d+ TABLE` shows in psql: what a row is, and what each column holds. Readers of the database
-- see these sentences (docs/admin/psql.md). A test finds the table or column that lacks one.

COMMENT ON TABLE fluxjobs IS
    'One row per workload: what it asks for, its state, the workload as last seen';
COMMENT ON COLUMN fluxjobs.uid IS 'UID of the workload object';
COMMENT ON COLUMN fluxjobs.jobid IS 'number in the order of submission; what users see';
COMMENT ON COLUMN fluxjobs.place IS 'order in one priority, see 32_place.sql';
COMMENT ON COLUMN fluxjobs.namespace IS 'namespace of the workload';
COMMENT ON COLUMN fluxjobs.name IS 'name of the FluxJob object';
COMMENT ON COLUMN fluxjobs.workload_kind IS 'Job, Pod, PodGroup, or what makes pods: JobSet, ...';
COMMENT ON COLUMN fluxjobs.workload_name IS 'name of the workload';
COMMENT ON COLUMN fluxjobs.flux_uid IS 'UID of the FluxJob object';
COMMENT ON COLUMN fluxjobs.published IS
    'what the FluxJob object shows: version, written_at (or put off), the generation of its spec '
    'that was applied last, flux_version (resourceVersion of our last write), told (reason of the last '
    'Event) and told_version (version of the row at that time)';
COMMENT ON COLUMN fluxjobs.notices IS 'further Events to emit with the next status update';
COMMENT ON COLUMN fluxjobs.status_due_at IS 'pending action: write its status, from then on';
COMMENT ON COLUMN fluxjobs.release_at IS
    'pending action: change its workload object to what the row says, from then on';
COMMENT ON COLUMN fluxjobs.reconcile_at IS
    'pending action: reconcile its pods, slots and begin time, from then on';
COMMENT ON COLUMN fluxjobs.troubles IS
    'stalled (why each pending action is refused, by task), since (when its present faults or '
    'refusals began) and last_error (why a pending action failed last)';
COMMENT ON COLUMN fluxjobs.user_name IS 'user that submitted it';
COMMENT ON COLUMN fluxjobs.queue IS 'queue it is in';
COMMENT ON COLUMN fluxjobs.priority IS 'see 30_priority.sql';
COMMENT ON COLUMN fluxjobs.priority_parts IS 'parts of the priority';
COMMENT ON COLUMN fluxjobs.state IS 'its state (docs/developer/state-machine.md)';
COMMENT ON COLUMN fluxjobs.reason IS 'why it is in this state, as a sentence';
COMMENT ON COLUMN fluxjobs.wait_reason IS
    'kind of reason why it waits; null: it waits for capacity';
COMMENT ON COLUMN fluxjobs.position IS
    'estimated position in its queue, as far as the plan reaches';
COMMENT ON COLUMN fluxjobs.held_by IS 'author, or the user that held it';
COMMENT ON COLUMN fluxjobs.quarantined_by IS 'version of the software that could not decide it';
COMMENT ON COLUMN fluxjobs.observed IS
    'facts of its workload as last seen, without those that have their default';
COMMENT ON COLUMN fluxjobs.request IS 'the jobspec';
COMMENT ON COLUMN fluxjobs.size IS 'pods that run at once, all or none';
COMMENT ON COLUMN fluxjobs.duration_s IS 'the longest it runs, in seconds; null: without limit';
COMMENT ON COLUMN fluxjobs.grace_s IS 'how long its pods may take to end, in seconds';
COMMENT ON COLUMN fluxjobs.accepted_by IS 'queue that accepted it; checked again after a move';
COMMENT ON COLUMN fluxjobs.begin_at IS 'earliest start';
COMMENT ON COLUMN fluxjobs.overrides IS
    'queue, priority and begin_at that an operator set instead of the author, and spec, the changes '
    'by users that were applied last';
COMMENT ON COLUMN fluxjobs.blocked_by IS 'why cycles do not consider it yet; null: they do';
COMMENT ON COLUMN fluxjobs.blocked_reason IS 'the same as a sentence';
COMMENT ON COLUMN fluxjobs.gather_until IS 'when they are overdue';
COMMENT ON COLUMN fluxjobs.author_hold IS 'how its author holds it, beside other holds';
COMMENT ON COLUMN fluxjobs.vacate_by IS
    'what ends its pods and returns it to the queue: a user, author, a preemptor or a fault';
COMMENT ON COLUMN fluxjobs.cancel_by IS 'user that cancelled it';
COMMENT ON COLUMN fluxjobs.requeues IS 'how often it went back to the queue';
COMMENT ON COLUMN fluxjobs.released_generation IS
    'generation of the BatchJob that our release made';
COMMENT ON COLUMN fluxjobs.is_placed IS
    'its pod template names the node of each index since its release';
COMMENT ON COLUMN fluxjobs.pinned_to IS 'node that its pod template names since its release';
COMMENT ON COLUMN fluxjobs.is_started IS 'all of its pods have run since its nodes were allocated';
COMMENT ON COLUMN fluxjobs.start IS
    'trouble (what keeps its pods from running), error (why its last start failed), tries (starts '
    'that failed since it last started) and retry_at (earliest time of the next try)';
COMMENT ON COLUMN fluxjobs.lacking IS 'number of slots that the matcher must add';
COMMENT ON COLUMN fluxjobs.result IS 'how its workload ended; null: not yet';
COMMENT ON COLUMN fluxjobs.is_deleting IS 'its workload is being deleted';
COMMENT ON COLUMN fluxjobs.is_gone IS 'its workload no longer exists';
COMMENT ON COLUMN fluxjobs.is_examined IS 'a cycle has checked whether it can ever fit';
COMMENT ON COLUMN fluxjobs.submitted_at IS 'when it was first seen';
COMMENT ON COLUMN fluxjobs.allocated_at IS 'when its nodes were allocated';
COMMENT ON COLUMN fluxjobs.started_at IS 'when its first pod was seen running';
COMMENT ON COLUMN fluxjobs.ended_at IS 'when it had ended and returned all its slots';
COMMENT ON COLUMN fluxjobs.expected_start IS 'expected start, if known';
COMMENT ON COLUMN fluxjobs.version IS 'rises with each change that its status shows';

COMMENT ON TABLE allocations IS
    'One live row per workload that holds resources, and those of before';
COMMENT ON COLUMN allocations.id IS 'number of the allocation';
COMMENT ON COLUMN allocations.uid IS 'its workload: fluxjobs.uid';
COMMENT ON COLUMN allocations.term IS 'leadership term that decided it';
COMMENT ON COLUMN allocations.starts_at IS 'epoch seconds';
COMMENT ON COLUMN allocations.until IS 'epoch seconds; null is unlimited';
COMMENT ON COLUMN allocations.plan_s IS 'how long it is planned to run by ended runs; null: as declared';
COMMENT ON COLUMN allocations.is_exclusive IS 'its nodes are held whole';
COMMENT ON COLUMN allocations.held IS
    'further nodes held whole, such as those of an exclusive rack';
COMMENT ON COLUMN allocations.is_independent IS
    'its slots come and go one by one, each with an end of its own: a sweep';
COMMENT ON COLUMN allocations.is_live IS 'it has not ended';
COMMENT ON COLUMN allocations.ended_at IS 'when it ended';

COMMENT ON TABLE allocation_slots IS
    'One row per slot of an allocation: its node, resources and pod';
COMMENT ON COLUMN allocation_slots.allocation_id IS 'its allocation: allocations.id';
COMMENT ON COLUMN allocation_slots.number IS 'counts from 0 within the allocation';
COMMENT ON COLUMN allocation_slots.node IS 'name of the node';
COMMENT ON COLUMN allocation_slots.resources IS 'amounts in base units: millicores, bytes, pieces';
COMMENT ON COLUMN allocation_slots.state IS
    'free (no pod holds it), held, or returned to the cluster';
COMMENT ON COLUMN allocation_slots.pod_uid IS 'UID of the pod that holds it';
COMMENT ON COLUMN allocation_slots.given_at IS 'when it was given to the workload';
COMMENT ON COLUMN allocation_slots.returned_at IS 'when it went back to the cluster';
COMMENT ON COLUMN allocation_slots.refused_at IS 'when its node refused a pod';
COMMENT ON COLUMN allocation_slots.completion_index IS
    'completion index that owns the slot, once a pod of it has held it';
COMMENT ON COLUMN allocation_slots.kind IS 'label in the request';
COMMENT ON COLUMN allocation_slots.granted IS 'what it was before its pod was resized in place';
COMMENT ON COLUMN allocation_slots.others IS 'further nodes that its pod may be bound to';
COMMENT ON COLUMN allocation_slots.past_s IS
    'seconds for which a sweep had it before it was given again';

COMMENT ON TABLE reservations IS 'Planned starts of the last cycle: promises';
COMMENT ON COLUMN reservations.uid IS 'its workload: fluxjobs.uid';
COMMENT ON COLUMN reservations.starts_at IS 'epoch seconds';
COMMENT ON COLUMN reservations.until IS 'epoch seconds; null is unlimited';
COMMENT ON COLUMN reservations.kept_from IS 'from when its nodes are kept free by plan, if that is before its start';
COMMENT ON COLUMN reservations.nodes IS 'the slots that are planned';

COMMENT ON TABLE expected_starts IS
    'Latest starts of blocked jobs that wait for jobs without a limit';
COMMENT ON COLUMN expected_starts.uid IS 'its workload: fluxjobs.uid';
COMMENT ON COLUMN expected_starts.latest_start IS 'epoch seconds; by plan only';
COMMENT ON COLUMN expected_starts.kept_from IS 'its planned start, after plans that were wrong have used up its slack';
COMMENT ON COLUMN expected_starts.nodes IS 'the slots that are kept from then on';

COMMENT ON TABLE told_starts IS 'What jobs were shown of their starts, and whether it was true';
COMMENT ON COLUMN told_starts.uid IS 'its workload: fluxjobs.uid';
COMMENT ON COLUMN told_starts.told_at IS 'when it was first shown (epoch seconds, as all here)';
COMMENT ON COLUMN told_starts.planned IS 'the start by plan then';
COMMENT ON COLUMN told_starts.expected IS 'the expected start then: half start by it';
COMMENT ON COLUMN told_starts.expected_by IS 'nine of ten start by it, as of then';
COMMENT ON COLUMN told_starts.shown_by IS 'the same, as shown now';
COMMENT ON COLUMN told_starts.started_at IS 'when it started; null: it waits';

COMMENT ON TABLE preemptions IS 'Victims and their preemptors, until the preemptor has started';
COMMENT ON COLUMN preemptions.victim IS 'UID of who makes way';
COMMENT ON COLUMN preemptions.allocation_id IS 'what it is to give back';
COMMENT ON COLUMN preemptions.preemptor IS 'UID of whom it is preempted for';
COMMENT ON COLUMN preemptions.jobid IS 'of the preemptor';
COMMENT ON COLUMN preemptions.vacate_at IS 'epoch seconds: not to leave before';
COMMENT ON COLUMN preemptions.decided_at IS 'when a cycle wanted it';
COMMENT ON COLUMN preemptions.is_told IS 'both sides have been told';
COMMENT ON COLUMN preemptions.is_vacated IS 'it has been asked to leave';
COMMENT ON COLUMN preemptions.is_off IS
    'over: the preemptor has started, or does not want it any more';
COMMENT ON COLUMN preemptions.reason_before IS 'what the victim said before it was told';

COMMENT ON TABLE pods IS 'Pods of our workloads that have not ended, as last seen';
COMMENT ON COLUMN pods.uid IS 'UID of the pod';
COMMENT ON COLUMN pods.workload_uid IS 'its workload: fluxjobs.uid';
COMMENT ON COLUMN pods.namespace IS 'namespace of the pod';
COMMENT ON COLUMN pods.name IS 'name of the pod';
COMMENT ON COLUMN pods.phase IS 'its phase in Kubernetes';
COMMENT ON COLUMN pods.is_gated IS 'it has the scheduling gate fluxqueue';
COMMENT ON COLUMN pods.is_terminating IS 'it is being deleted';
COMMENT ON COLUMN pods.node IS 'the node that it is bound to';
COMMENT ON COLUMN pods.completion_index IS 'its completion index, if its Job is Indexed';
COMMENT ON COLUMN pods.sent_at IS 'when a worker last began to ungate it';
COMMENT ON COLUMN pods.slot_kind IS 'kind of slot that it needs';
COMMENT ON COLUMN pods.uses IS 'its own resource requests';
COMMENT ON COLUMN pods.used_first IS 'its resource requests when it was first seen';
COMMENT ON COLUMN pods.unmanaged IS 'resources of a bound pod beyond its slot';
COMMENT ON COLUMN pods.unschedulable IS
    'why kube-scheduler cannot bind it, in its own words, or what scheduler is missing';
COMMENT ON COLUMN pods.unschedulable_at IS 'since when';

COMMENT ON TABLE nodes IS 'Nodes as last seen';
COMMENT ON COLUMN nodes.name IS 'name of the node';
COMMENT ON COLUMN nodes.fact IS
    'capacity (base units), labels, taints, whether it is up and schedulable';
COMMENT ON COLUMN nodes.seen_at IS 'when that was written';
COMMENT ON COLUMN nodes.hostname IS
    'value of kubernetes.io/hostname, which may differ from the name';

COMMENT ON TABLE foreign_usage IS 'Unmanaged pods that are bound to a node';
COMMENT ON COLUMN foreign_usage.pod_uid IS 'UID of the pod';
COMMENT ON COLUMN foreign_usage.namespace IS 'namespace of the pod';
COMMENT ON COLUMN foreign_usage.name IS 'name of the pod';
COMMENT ON COLUMN foreign_usage.node IS 'name of its node';
COMMENT ON COLUMN foreign_usage.resources IS 'amounts in base units: millicores, bytes, pieces';
COMMENT ON COLUMN foreign_usage.is_permanent IS 'it belongs to a DaemonSet, or is a static pod';

COMMENT ON TABLE graph_changes IS 'Changes that no cycle has read yet';
COMMENT ON COLUMN graph_changes.id IS 'in the order of writing';
COMMENT ON COLUMN graph_changes.kind IS
    'node, queue, sharing, pool: name; foreign: its node''s; allocation: its id; fluxjob: uid';
COMMENT ON COLUMN graph_changes.key IS 'the object that changed';

COMMENT ON TABLE leadership IS 'The processes that may match and observe, each with its term';
COMMENT ON COLUMN leadership.role IS 'matcher or controller';
COMMENT ON COLUMN leadership.term IS 'rises with each holder; an older one commits nothing';
COMMENT ON COLUMN leadership.holder IS 'name of the process';
COMMENT ON COLUMN leadership.expires_at IS 'until when, unless it is renewed';
COMMENT ON COLUMN leadership.commits IS
    'transactions that decided, of all terms; never falls in one database';
COMMENT ON COLUMN leadership.timeline IS
    'timeline of Postgres that the term began on; null: not known';
COMMENT ON COLUMN leadership.since IS
    'of the controller: since when rows are compared without a gap';

COMMENT ON TABLE history IS 'Changes of FluxJobs: who, what and when';
COMMENT ON COLUMN history.id IS 'in the order of writing';
COMMENT ON COLUMN history.at IS 'when';
COMMENT ON COLUMN history.uid IS 'the workload: fluxjobs.uid';
COMMENT ON COLUMN history.jobid IS 'its number';
COMMENT ON COLUMN history.actor IS 'a user, or a part of fluxqueue';
COMMENT ON COLUMN history.event IS 'the new state, or a command';
COMMENT ON COLUMN history.detail IS 'the former state, the reason, and further facts';

COMMENT ON TABLE fluxqueues IS 'One row per named queue';
COMMENT ON COLUMN fluxqueues.name IS 'name of the FluxQueue';
COMMENT ON COLUMN fluxqueues.uid IS 'UID of the FluxQueue object; null before it was seen';
COMMENT ON COLUMN fluxqueues.generation IS 'generation of the spec in force';
COMMENT ON COLUMN fluxqueues.spec IS 'the spec in force';
COMMENT ON COLUMN fluxqueues.namespaces IS 'allowed namespaces, with selectors resolved; null: all';
COMMENT ON COLUMN fluxqueues.queue_depth IS
    'jobs that a cycle examines; null: the value of the settings';
COMMENT ON COLUMN fluxqueues.priority IS 'added to the priority of its FluxJobs';
COMMENT ON COLUMN fluxqueues.min_priority IS 'lowest priority that can be requested';
COMMENT ON COLUMN fluxqueues.max_priority IS 'highest priority that can be requested';
COMMENT ON COLUMN fluxqueues.newcomer_points IS
    'fair share of users without a row; 0: fair share is off';
COMMENT ON COLUMN fluxqueues.fault IS 'why the last spec seen is not the one in force';

COMMENT ON TABLE rules IS
    'One row per ResourceSharingPolicy, FluxNodePool and FluxReservation: what administrators want of nodes';
COMMENT ON COLUMN rules.kind IS 'sharing: a ResourceSharingPolicy, pool: a FluxNodePool, reservation: a FluxReservation';
COMMENT ON COLUMN rules.name IS 'name of the object';
COMMENT ON COLUMN rules.uid IS 'UID of the object';
COMMENT ON COLUMN rules.generation IS 'generation of the spec that is in force, or was refused';
COMMENT ON COLUMN rules.spec IS 'the spec in force; null: there was no valid one yet';
COMMENT ON COLUMN rules.fault IS 'why the last spec seen is not the one in force';
COMMENT ON COLUMN rules.record IS
    'of a pool: learned (seconds until its last nodes were ready, the newest last), failures in a row, retry_at (earliest next request, epoch seconds), why (the last failure)';

COMMENT ON TABLE node_requests IS 'Requests for new nodes, each for one job, and how each ended';
COMMENT ON COLUMN node_requests.number IS 'in the order of the requests';
COMMENT ON COLUMN node_requests.pool IS 'name of the FluxNodePool';
COMMENT ON COLUMN node_requests.uid IS 'the job that they are for: fluxjobs.uid';
COMMENT ON COLUMN node_requests.queue IS 'queue of the job, with the budget that pays';
COMMENT ON COLUMN node_requests.count IS 'number of requested nodes';
COMMENT ON COLUMN node_requests.price IS 'price of a node for an hour';
COMMENT ON COLUMN node_requests.asked_at IS 'when (epoch seconds)';
COMMENT ON COLUMN node_requests.ready_at IS 'expected arrival of its nodes (epoch seconds)';
COMMENT ON COLUMN node_requests.kept IS
    'slots of the job on present nodes that are reserved for it: node and resources of each';
COMMENT ON COLUMN node_requests.refused IS 'why its provider refuses it permanently';
COMMENT ON COLUMN node_requests.pool_spec IS
    'spec of the pool at that time, used to withdraw the request';
COMMENT ON COLUMN node_requests.ended IS 'used, failed or withdrawn; null: it is open';
COMMENT ON COLUMN node_requests.reason IS 'why it ended';
COMMENT ON COLUMN node_requests.ended_at IS 'when it ended';
COMMENT ON COLUMN node_requests.is_settled IS
    'pending action: false until the provider has withdrawn it after its end';

COMMENT ON TABLE pool_nodes IS 'Nodes of pools, each with the request that it came for';
COMMENT ON COLUMN pool_nodes.node IS 'name of the node';
COMMENT ON COLUMN pool_nodes.pool IS 'name of the FluxNodePool';
COMMENT ON COLUMN pool_nodes.request IS 'node_requests.number that it came for; null: none';
COMMENT ON COLUMN pool_nodes.returned_at IS
    'pending action: its provider removes it, since then (epoch seconds)';
COMMENT ON COLUMN pool_nodes.seen_at IS 'when it was first usable';

COMMENT ON TABLE fair_shares IS 'Decayed use by queue and user, and the points it is worth';
COMMENT ON COLUMN fair_shares.queue IS 'name of the queue';
COMMENT ON COLUMN fair_shares.user_name IS 'the user';
COMMENT ON COLUMN fair_shares.used IS 'cpu-seconds, decayed to computed_at';
COMMENT ON COLUMN fair_shares.factor IS '1: nothing used, 0.5: exactly the share';
COMMENT ON COLUMN fair_shares.points IS 'points that are added to the priority';
COMMENT ON COLUMN fair_shares.computed_at IS 'when they were computed';

COMMENT ON TABLE dependencies IS 'Edges of depends_on, each with the workload its name stands for';
COMMENT ON COLUMN dependencies.uid IS 'the waiting workload: fluxjobs.uid';
COMMENT ON COLUMN dependencies.number IS 'counts from 0 within the workload';
COMMENT ON COLUMN dependencies.kind IS 'afterok, afternotok, afterany, after or singleton';
COMMENT ON COLUMN dependencies.namespace IS 'namespace of the name';
COMMENT ON COLUMN dependencies.job IS 'name or jobid, as its author wrote it';
COMMENT ON COLUMN dependencies.target_uid IS 'UID of the workload that it names, or of the newest ahead of a singleton; null: none yet';
COMMENT ON COLUMN dependencies.is_satisfied IS 'it is satisfied, and stays so';

COMMENT ON TABLE accounting IS 'One row per run: when, where, how much, and how it ended';
COMMENT ON COLUMN accounting.id IS 'in the order of writing';
COMMENT ON COLUMN accounting.uid IS 'UID of the workload';
COMMENT ON COLUMN accounting.jobid IS 'its number';
COMMENT ON COLUMN accounting.run IS 'counts from 1; a requeue begins another';
COMMENT ON COLUMN accounting.allocation_id IS 'null: it never had one';
COMMENT ON COLUMN accounting.namespace IS 'its namespace';
COMMENT ON COLUMN accounting.name IS 'name of the workload';
COMMENT ON COLUMN accounting.workload_kind IS 'Job, Pod, PodGroup, or what makes pods: JobSet, ...';
COMMENT ON COLUMN accounting.user_name IS 'user that submitted it';
COMMENT ON COLUMN accounting.queue IS 'its queue';
COMMENT ON COLUMN accounting.size IS 'pods that ran at once';
COMMENT ON COLUMN accounting.queued_at IS 'when this run began to wait';
COMMENT ON COLUMN accounting.allocated_at IS 'when its nodes were allocated; null: never';
COMMENT ON COLUMN accounting.started_at IS 'when the first pod was seen running';
COMMENT ON COLUMN accounting.ended_at IS 'when it had returned all its slots';
COMMENT ON COLUMN accounting.nodes IS 'how many nodes it had';
COMMENT ON COLUMN accounting.slots IS 'how many slots it had';
COMMENT ON COLUMN accounting.cpu_s IS 'core-seconds given';
COMMENT ON COLUMN accounting.gpu_s IS 'GPU-seconds given';
COMMENT ON COLUMN accounting.result IS 'the final state, or Requeued';
COMMENT ON COLUMN accounting.reason IS 'why it ended, as a sentence';
COMMENT ON TABLE run_times IS 'How long the last runs of alike work held their slots';
COMMENT ON COLUMN run_times.id IS 'in the order of writing';
COMMENT ON COLUMN run_times.queue IS 'its queue';
COMMENT ON COLUMN run_times.owner IS 'user that submitted it, or its namespace';
COMMENT ON COLUMN run_times.template IS 'fingerprint of its pods: images, commands, arguments, requests';
COMMENT ON COLUMN run_times.limit_s IS 'limit of the run in seconds; null: nothing ends it';
COMMENT ON COLUMN run_times.seconds IS 'how long it held its slots; the mean of its pods if they are independent';
COMMENT ON COLUMN run_times.result IS 'the final state, or Requeued';
COMMENT ON COLUMN run_times.ended_at IS 'when the run ended';

COMMENT ON TABLE quarantined_objects IS 'Objects that the controller cannot read or store, and why';
COMMENT ON COLUMN quarantined_objects.kind IS 'workload, node, queue, foreign, ...';
COMMENT ON COLUMN quarantined_objects.key IS 'its UID, or its name';
COMMENT ON COLUMN quarantined_objects.namespace IS
    'namespace of the object; empty where it has none';
COMMENT ON COLUMN quarantined_objects.name IS 'its name';
COMMENT ON COLUMN quarantined_objects.reason IS 'why it cannot be used';
COMMENT ON COLUMN quarantined_objects.since IS 'since when';

COMMENT ON TABLE learned_sizes IS
    'Requests of pods beyond their templates, by namespace and template';
COMMENT ON COLUMN learned_sizes.namespace IS 'namespace of the workload';
COMMENT ON COLUMN learned_sizes.template IS 'digest of what admission decides by';
COMMENT ON COLUMN learned_sizes.extra IS 'requests of each pod beyond the template';
COMMENT ON COLUMN learned_sizes.learned_at IS 'creation time of the pod that showed it';
COMMENT ON COLUMN learned_sizes.written_at IS 'when this was written';

COMMENT ON TABLE loops IS 'When each loop of controller and worker last succeeded';
COMMENT ON COLUMN loops.loop IS 'cycle, observe, publish, sweep, ...';
COMMENT ON COLUMN loops.holder IS 'process that wrote this last';
COMMENT ON COLUMN loops.began_at IS 'when it began to run without a pause';
COMMENT ON COLUMN loops.written_at IS 'when this was written';
COMMENT ON COLUMN loops.succeeded_at IS 'when it last succeeded, or had nothing to do';
COMMENT ON COLUMN loops.failed_at IS 'when it last failed';
COMMENT ON COLUMN loops.error IS 'why it has failed since it last succeeded';
COMMENT ON COLUMN loops.patience_s IS 'seconds without success after which it is late';

COMMENT ON TABLE schema_floor IS 'The oldest code that still works on this schema';
COMMENT ON COLUMN schema_floor.is_only IS 'there is one row';
COMMENT ON COLUMN schema_floor.oldest_head IS 'newest revision that such code knows';
COMMENT ON COLUMN schema_floor.digest IS
    'SHA-256 of the text of the revisions that made the schema';

COMMENT ON TABLE cluster IS 'The cluster that all rows are about';
COMMENT ON COLUMN cluster.is_only IS 'there is one row';
COMMENT ON COLUMN cluster.uid IS 'UID of its namespace kube-system';
COMMENT ON COLUMN cluster.server IS 'address of its API server at that time';
COMMENT ON COLUMN cluster.bound_at IS 'since when';
COMMENT ON COLUMN cluster.autoscaler IS 'autoscaler that adds nodes to it; empty: none seen';
