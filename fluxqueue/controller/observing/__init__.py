"""Turn the state of the cluster into rows: informers report, marks are made, a loop writes.

``observer`` owns the state and starts the rest, under one term of the leader
(``controller.controller_process``). ``watches`` receives events. ``event_router`` makes marks and
has FluxJobs created. ``flusher`` writes what is marked. ``resync_schedule`` corrects remaining
differences. None of them matches or releases jobs.
"""
