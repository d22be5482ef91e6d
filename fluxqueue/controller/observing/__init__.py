"""What the cluster shows becomes rows: informers tell, marks are made, a loop writes them.

``observer`` owns the state and starts the rest, under one term of the leader (``controller.main``):
``watches`` hears, ``marking`` marks and has FluxJobs made, ``writing`` writes what is marked,
``comparing`` puts right what differs all the same. None of them matches, or lets anything go.
"""
