import pytest
from fastapi import APIRouter, Depends

from lathe.service.http.direct_route import DirectRoute


def test_a_direct_route_refuses_dependencies_which_it_would_not_call():
    router = APIRouter(route_class=DirectRoute)

    async def answer(request, services):
        """Answer nothing."""

    with pytest.raises(ValueError, match="/any is a DirectRoute: it calls no dependencies"):
        router.post("/any", dependencies=[Depends(answer)])(answer)
