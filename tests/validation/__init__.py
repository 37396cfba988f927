"""What must hold of sessions in memory on several workers, row by row, against real servers.

The rows are those of the test list of the change that brought session routing to NeMo Gym, in general form: an app of
our own (`tests.validation.app`) under rules of our own (`tests.validation.gym`), new connections, and, where a row
speaks of two workers, connections of which the test knows who accepted them.

===  =================================================================  =============================================
row  what holds                                                         test
===  =================================================================  =============================================
1    every source of an ID leads to the worker that made the session    test_sources: row1
2    every path that makes a session claims it, none else does; the     test_claims: row2
     claim stands before the reply arrives; an ended claim is made
     again; an ID minted twice is 409; IDs minted at once differ
3    when resources claims end, without another request                 test_lifetime: row3
4    when agent claims end; a start that makes nothing leaves none      test_lifetime: row4
5    two IDs of two sessions are 409, also with one worker; a start     test_two_ids: row5
     whose claim moved meanwhile is 409
6    cookie, token and ID of a worker that is gone get 410              test_gone: row6
7    what comes by the private socket is handled there, unchanged,      test_hop: row7
     with the owner's cookies alone
8    cookies and tokens with more fields go by their session ID         test_sources: row8
9    one worker writes no claims                                        test_claims: row9
10   races: two claims of one ID, a start and a close at once, a claim  test_races: row10
     that ends under a request, a server started again
11   9 MiB of body reach the owner; a start without a valid ID is       test_sources: row11
     served and claimed where it lands
12   the private socket leaves uvicorn's loggers alone                  test_hop: row12
===  =================================================================  =============================================

One row differs by nature. The original suppresses the session cookie of a reply whose handler did not use the session,
for it is the framework. A router around an unmodified app cannot take a Set-Cookie off a reply: such an ID is claimed
for the return window instead (test_lifetime: row3, an ID that never comes back).
"""
